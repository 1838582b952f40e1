"""A release as its users have it: built twice, its image run by podman, its .deb installed and purged.

Only here: that the image runs without root, network, capabilities and a writable root, and that the package's units are
ones that systemd takes.
One build takes 60 CPU s without CUDA's libraries.
"""

from __future__ import annotations

import filecmp
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.lab.image import ensure_image
from tools.dist.__main__ import CHECKOUT, PYTHONS, build
from tools.dist.deb import UNITS
from tools.dist.image import NAME
from tools.dist.python import build_wheelhouse
from tools.dist.source import Source, export
from tools.dist.sums import files_of

pytestmark = pytest.mark.soak
LIMITS = ("--ulimit", "nofile=8192:8192", "--ulimit", "nproc=4096:4096")
CONFINED = ("--network", "none", "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges")
# Each library that an extension of Python or the system has must find those that it needs.
LOAD = """
import ctypes, glob
for path in glob.glob("/usr/lib/python3*/lib-dynload/*.so") + glob.glob("/usr/lib/x86_64-linux-gnu/*.so*"):
    ctypes.CDLL(path)
import cryptography, jsonschema, kubernetes, numpy, prometheus_client, rich, sqlite3, ssl
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Source]:
    """A release without CUDA's libraries."""
    folder = tmp_path_factory.mktemp("release") / "one"
    return folder, build(CHECKOUT, "HEAD", folder, ["none"], None)


def test_the_node_s_wheelhouse_is_found_by_the_tool_of_the_role(release: tuple[Path, Source], tmp_path: Path) -> None:
    """As a controller without a way out has it: nothing is downloaded, or it would be another file."""
    state = tmp_path / "wheelhouse"
    shutil.copytree(release[0] / "wheelhouse-node", state)
    before = {path.name: path.stat().st_mtime_ns for path in state.iterdir()}
    (tmp_path / "source").mkdir()
    source = export(CHECKOUT, release[1].commit, tmp_path / "source")
    found = build_wheelhouse(source, ["node.txt"], PYTHONS, state)
    assert {path.name: path.stat().st_mtime_ns for path in state.iterdir()} == before and found.name in before


@pytest.fixture(scope="module")
def image(release: tuple[Path, Source]) -> Iterator[str]:
    """The image, in podman's store."""
    folder, source = release
    subprocess.run(["podman", "load", "-q", "-i", folder / f"muster-{source.version}-image.tar"], check=True)
    yield f"{NAME}:{source.version}"
    subprocess.run(["podman", "rmi", "--force", f"{NAME}:{source.version}"], check=True)


def contained(image: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in a container with as few rights as there are."""
    words = ["podman", "run", "--rm", *LIMITS, *CONFINED, image, *command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_a_second_build_of_the_commit_is_the_same_bytes(release: tuple[Path, Source], tmp_path: Path) -> None:
    folder, source = release
    build(CHECKOUT, source.commit, tmp_path / "two", ["none"], None)
    files = files_of(folder)
    assert files == files_of(tmp_path / "two") and len(files) >= 10
    assert [str(path) for path in files if not filecmp.cmp(folder / path, tmp_path / "two" / path, False)] == []


def test_the_image_runs_as_nobody_with_a_root_that_cannot_be_written(image: str, release: tuple[Path, Source]) -> None:
    assert contained(image, "gpu-burnin", "--version").stdout == f"gpu-burnin, version {release[1].version}\n"
    assert contained(image, "muster", "admitter", "--help").returncode == 0
    loaded = contained(image, "/usr/lib/gpu-burnin/bin/python", "-c", LOAD + "import os; print(os.getuid())")
    assert (loaded.stdout, loaded.returncode) == ("65532\n", 0), loaded.stderr
    done = contained(image, "gpu-burnin", "demo")
    assert done.returncode == 0 and done.stdout.startswith("VERDICT  PASS "), done.stdout + done.stderr
    sick = contained(image, "gpu-burnin", "demo", "--sick")
    assert sick.returncode == 1 and "GEMM_MISMATCH" in sick.stdout


@pytest.mark.parametrize("program", ["sh", "/bin/sh", "bash", "apt", "dpkg", "ssh", "perl"])
def test_the_image_has_neither_a_shell_nor_tools(program: str, image: str) -> None:
    done = contained(image, program)
    assert done.returncode == 127 and "not found" in done.stderr.lower() + "no such file", done.stderr


@pytest.fixture
def host(release: tuple[Path, Source]) -> Iterator[str]:
    """A container of the lab's root file system, and the release in it at /release. Without systemd as its first
    process: systemd-analyze needs none."""
    words = ["podman", "run", "--detach", *LIMITS, "--network", "none", "--volume", f"{release[0]}:/release:ro"]
    command = [*words, "--rootfs", f"{ensure_image()}:O", "sleep", "600"]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    yield name
    subprocess.run(["podman", "rm", "--force", "--time", "0", name], check=True, capture_output=True)


def inside(host: str, command: str) -> str:
    """Standard output of a shell command that must succeed."""
    done = subprocess.run(["podman", "exec", host, "sh", "-ec", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def everything(host: str) -> Sequence[str]:
    """All names below /, but for what dpkg keeps for itself."""
    # dpkg's own books, and what systemctl leaves until the next boot.
    places = ("/proc", "/sys", "/dev", "/run", "/release", "/var/lib/dpkg", "/var/log")
    skipped = rf"\( {' -o '.join(f'-path {place}' for place in places)} \)"
    return sorted(set(inside(host, f"find / {skipped} -prune -o -print").splitlines()))


def test_a_package_is_installed_used_and_purged_without_a_trace(host: str, release: tuple[Path, Source]) -> None:
    before = everything(host)
    inside(host, "dpkg -i /release/gpu-burnin_*.deb")
    assert release[1].version in inside(host, "gpu-burnin --version; muster --help")
    assert inside(host, "dpkg --verify gpu-burnin") == ""
    inside(host, f"systemd-analyze verify --man=no {' '.join(UNITS)}")
    enabled = inside(host, f"for unit in {' '.join(UNITS)}; do systemctl is-enabled $unit || :; done")
    assert enabled == "disabled\n" * len(UNITS)
    inside(host, f"systemctl enable {' '.join(UNITS)}")
    inside(host, "cd /tmp && gpu-burnin demo --sick || [ $? = 1 ]; rm -r /tmp/gpu-burnin-demo")
    inside(host, "mkdir -p /etc/gpu-burnin /var/lib/gpu-burnin && echo level: quick > /etc/gpu-burnin/config.yaml")
    # The same again, as an upgrade.
    inside(host, "dpkg -i /release/gpu-burnin_*.deb")
    inside(host, "dpkg --remove gpu-burnin")
    assert inside(host, "cat /etc/gpu-burnin/config.yaml") == "level: quick\n"
    inside(host, "dpkg --purge gpu-burnin")
    assert set(everything(host)) - set(before) == set()


def test_a_purge_leaves_the_state_of_a_host_that_the_role_has_built(host: str) -> None:
    inside(host, "dpkg -i /release/gpu-burnin_*.deb; mkdir -p /var/lib/gpu-burnin; touch /var/lib/gpu-burnin/sequence")
    inside(host, "cp /usr/lib/systemd/system/gpu-burnin-watch.service /etc/systemd/system/")
    inside(host, "dpkg --purge gpu-burnin; test -e /var/lib/gpu-burnin/sequence")
