"""`make setup`, `make setup-dev`, `make setup-lab` on a machine made of stand-ins for dpkg, apt-get and Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.paths import REPOSITORY

CONTROLLER = {"git", "openssh-client", "python3-venv"}
DEV = CONTROLLER | {"g++", "gpg", "gpg-agent", "kmod", "libc6-dev", "make", "openssl", "shellcheck"}
LAB = DEV | {
    "age",
    "bird2",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "mmdebstrap",
    "podman",
    "rclone",
    "runc",
}
PROGRAMS = {
    "id": "cat uid",
    "dpkg-query": """
while read -r package; do
  [[ " $* " != *" $package "* ]] || echo "$package installed"
done <installed
exit 1""",
    "apt-get": """
case "$*" in
  *--simulate*) printf 'Inst %s (1.0)\\n' "${@:4}" ;;
  install*) echo "apt-get $*" >>calls; printf '%s\\n' "${@:4}" >>installed; printf 'Setting up %s ...\\n' "${@:4}" ;;
esac""",
    "python3": """
case "$*" in
  "-m venv"*) echo "venv $*" >>calls; rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *" -e .") echo "pip -e" >>calls ;;
  "-m pip"*) echo "pip ${*: -1}" >>calls; echo "Collecting numpy==2.4.6"
    [[ ! -e broken ]] || { echo "ERROR: no route to the index"; exit 1; } ;;
esac""",
}


@dataclass(frozen=True)
class Machine:
    """A checkout with stand-ins for the programs that set it up."""

    root: Path

    def setup(self, *arguments: str) -> tuple[int, list[str]]:
        """Run tools/setup.sh; its exit code and the lines it shows."""
        done = subprocess.run(
            ["tools/setup.sh", *arguments],
            cwd=self.root,
            env={**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "PYTHON": "python3"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, (done.stdout + done.stderr).splitlines()

    def calls(self) -> list[str]:
        """What was installed since the last look."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def packages(self) -> set[str]:
        return set((self.root / "installed").read_text().split())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A bare machine; the user is root."""
    for folder in ("tools", "bin", "requirements"):
        (tmp_path / folder).mkdir()
    shutil.copy(REPOSITORY / "tools/setup.sh", tmp_path / "tools")
    for name, script in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name, text in {
        "uid": "0", "installed": "", "pyproject.toml": "[project]\n",
        "requirements/controller.txt": "numpy==2.4.6 \\\n", "requirements/dev.txt": "numpy==2.4.6 \\\nruff==0.17 \\\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("level", "packages", "lock", "following"),
    [
        (
            "controller",
            CONTROLLER,
            "controller",
            ["source .venv/bin/activate", "cp -r inventory/example inventory/prod"],
        ),
        ("dev", DEV, "dev", ["make check"]),
        ("lab", LAB, "dev", ["make lab"]),
    ],
)
def test_a_bare_machine_gets_what_it_needs_and_is_told_what_comes_next(
    machine: Machine, level: str, packages: set[str], lock: str, following: list[str]
) -> None:
    code, lines = machine.setup(level)
    assert code == 0, lines
    assert machine.packages() == packages
    assert [call for call in machine.calls() if call.startswith("pip")] == [f"pip requirements/{lock}.txt", "pip -e"]
    assert any(line.startswith("setup: system packages: installing ") for line in lines)
    assert any(f"packages of requirements/{lock}.txt" in line for line in lines)
    assert [line.strip().partition("   ")[0] for line in lines[-len(following) :]] == following

    code, lines = machine.setup(level)
    assert (code, len(lines), machine.calls()) == (0, 2, [])
    assert lines[0].startswith(f"setup: nothing to do: {len(packages)} system packages")
    assert lines[1].startswith(f"setup: next: {' && '.join(following)}")
    assert machine.setup(level, "--quiet") == (0, [])


def test_a_controller_becomes_a_lab_and_stays_a_controller(machine: Machine) -> None:
    assert machine.setup("controller")[0] == 0
    machine.calls()
    code, lines = machine.setup("lab")
    assert code == 0, lines
    calls = machine.calls()
    assert [call for call in calls if call.startswith("pip")] == ["pip requirements/dev.txt", "pip -e"]
    assert not [call for call in calls if call.startswith("venv")], "what is there is kept"
    assert machine.setup("controller", "--quiet") == (0, [])


def test_an_inventory_that_is_there_is_not_copied_over(machine: Machine) -> None:
    (machine.root / "inventory/prod").mkdir(parents=True)
    assert machine.setup("controller")[1][-2:] == [
        "  source .venv/bin/activate",
        "  ansible-playbook -i inventory/prod site.yml",
    ]


def test_other_pins_make_the_environment_anew(machine: Machine) -> None:
    assert machine.setup("controller")[0] == 0
    machine.calls()
    (machine.root / "requirements/controller.txt").write_text("numpy==2.5 \\\n")
    assert machine.setup("controller")[0] == 0
    assert machine.calls() == ["venv -m venv --clear .venv", "pip requirements/controller.txt", "pip -e"]


def test_without_root_the_command_to_type_is_given_and_nothing_is_made(machine: Machine) -> None:
    (machine.root / "uid").write_text("1000")
    (machine.root / "installed").write_text("git\npython3-venv\n")
    code, lines = machine.setup("controller")
    assert code == 2
    assert lines == [
        "setup: these system packages are missing: openssh-client",
        "setup: install them, then run `make setup` again:",
        "  sudo apt-get update && sudo apt-get install -y --no-install-recommends openssh-client",
    ]
    assert machine.calls() == [] and not (machine.root / ".venv").exists()
    (machine.root / "installed").write_text("".join(f"{name}\n" for name in LAB))
    assert machine.setup("lab")[1][-1] == "  sudo make lab"


def test_what_pip_says_is_shown_when_it_fails_and_the_next_run_begins_anew(machine: Machine) -> None:
    (machine.root / "broken").touch()
    code, lines = machine.setup("controller")
    assert code == 2
    assert "ERROR: no route to the index" in lines
    assert lines[-1].startswith("setup: all of its output is in build/setup.log; run `make setup` again")
    (machine.root / "broken").unlink()
    machine.calls()
    assert machine.setup("controller")[0] == 0
    assert "venv -m venv --clear .venv" in machine.calls()


@pytest.mark.parametrize(
    ("target", "setup"),
    [
        ("setup", "controller"), ("setup-lab", "lab"), ("lab", "lab --quiet"), ("test", "lab --quiet"),
        ("molecule", "lab --quiet"), ("driver-debian", "lab --quiet"), ("upgrade-minor", "dev --quiet"),
        ("lab-operations", "lab --quiet"), ("check", "dev --quiet"), ("unit", "dev --quiet"),
        ("collection", "controller --quiet"),
    ],
)  # fmt: skip
def test_each_target_asks_for_what_it_needs(target: str, setup: str) -> None:
    # A make inside `make test` would begin with the directory that it works in.
    command = ["make", "--no-print-directory", "-n", target]
    planned = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert planned.splitlines()[0].split() == ["tools/setup.sh", *setup.split()]


def test_ci_proves_a_clean_clone_with_the_target_that_installs_everything() -> None:
    assert "exec make test" in (REPOSITORY / ".ci/run").read_text()
