"""Every command of the runbooks: what it names is there, and runbook_commands.yml says which test runs it."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.runbooks import PAGES, ROOT, Command, commands, runs_something, units, words_of

TABLE: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("runbook_commands.yml").read_text())
ALL = [command for page in PAGES for command in commands(page)]
RUN = [command for command in ALL if runs_something(command)]
# What no test runs stands on these pages, and others link to them: beside a command it reads as if it did not work.
UNTESTED = ("docs/status.md", "docs/reference/untested-commands.md")
SAYS_SO = re.compile(r"\bno\s+test\s+runs\b(?!\]\()|^#+ not tested$", re.IGNORECASE | re.MULTILINE)
# Commands of muster that ask the API server with the kubeconfig of a person, whom ~/.kube/config seldom helps.
OF_THE_CLUSTER = re.compile(r"muster (?:coverage|node|pause|resume|retest|status|who|why)\b")
KINDS = {"csr", "lease", "node", "nodeadmissions", "nodes"}
VERBS = {"config", "delete", "drain", "get", "uncordon"}
# Units and paths of the systems and of packages that the roles install.
OF_PACKAGES = {"/etc/ssh/ssh_host_ed25519_key.pub", "grafana-server"}
# What the pages leave to the reader, made on his own machine.
OF_THE_READER = ("/srv/etcd-backup", "/opt/gpu-burnin", "/tmp/")
HOSTS = re.compile(r"[A-Z]+|(?:api|gpu|mon)-\d+|localhost")


@cache
def roles() -> str:
    """All that the roles and playbooks say."""
    places = ("roles/*/*/*", "roles/*/templates/**/*", "playbooks/**/*.yml", "site.yml", "gpu_burnin/**/*.py")
    files = {path for place in places for path in ROOT.glob(place) if path.is_file() and "molecule" not in path.parts}
    return "\n".join(path.read_text(errors="replace") for path in sorted(files))


@cache
def options(program: str) -> frozenset[str]:
    """The options of a program of Ansible, by its own help."""
    words = [str(Path(sys.executable).parent / program), *(["encrypt"] if program == "ansible-vault" else []), "--help"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", told))


@cache
def groups() -> frozenset[str]:
    """Every key of the two inventories: hosts and groups among them."""
    text = "".join((ROOT / f"inventory/{name}/hosts.yml").read_text() for name in ("example", "lab"))
    return frozenset(re.findall(r"^\s*([\w-]+):", text, re.MULTILINE))


def missing(words: list[str]) -> list[str]:
    """What a simple command names that is not there."""
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return [word for word in rest if "=" not in word and word not in targets]
    if program.startswith("ansible"):
        return _of_ansible(program, rest) + _paths(rest)
    if program in ("systemctl", "journalctl"):
        return [unit for unit in units(rest) if unit not in roles() and unit not in OF_PACKAGES]
    if program == "kubectl":
        verb, *more = _plain(rest)
        kind = more[:1] if verb in ("get", "delete") and "--raw" not in rest else []
        return [word for word in [verb] if word not in VERBS] + [word for word in kind if word not in KINDS]
    if rest[:1] == ["-m"] and rest[1] not in ("venv", "pip"):
        module = ROOT / rest[1].replace(".", "/")
        return [] if module.is_dir() or module.with_suffix(".py").is_file() else [rest[1]]
    return _paths(rest)


def _plain(words: list[str]) -> list[str]:
    """Words that are no option and no option's value."""
    with_value = {"--kubeconfig", "-n", "-o", "--raw"}
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if before not in with_value and not word.startswith("-")]


def _of_ansible(program: str, words: list[str]) -> list[str]:
    found = [word for word in words if word.startswith("-") and word not in options(program)]
    playbooks = [word for word in words if word.endswith(".yml")]
    found += [name for name in playbooks if not (ROOT / name).is_file()]
    texts = "".join((ROOT / name).read_text() for name in playbooks if (ROOT / name).is_file())
    pattern = words[2] if program == "ansible" else "localhost"
    found += [] if HOSTS.fullmatch(pattern) or pattern in groups() else [pattern]
    for option, value in itertools.pairwise(words):
        if option == "-e":
            name = value.partition("=")[0]
            specs = "".join(path.read_text() for path in ROOT.glob("roles/*/meta/argument_specs.yml"))
            known = re.search(rf"\b{name}\b", texts.partition("\n- name")[2]) or f"\n      {name}:\n" in specs
            found += [] if known else [name]
        elif option == "-l":
            found += [name for name in value.split(",") if not HOSTS.fullmatch(name) and name not in groups()]
        elif option == "--tags":
            found += [] if re.search(rf"tags:.*\b{value}\b", texts) else [value]
        elif option == "-m" and value.startswith("muster.fleet."):
            module = ROOT / f"collections/ansible_collections/muster/fleet/plugins/modules/{value.split('.')[-1]}.py"
            found += [] if module.is_file() else [value]
    return found


def _paths(words: list[str]) -> list[str]:
    found = []
    for word in words:
        path = re.sub(r"^\w+@\w+:|^--\w+=", "", word)
        if path.startswith("/") and not path.startswith(OF_THE_READER) and path not in OF_PACKAGES:
            place = path.partition("*")[0].rstrip("/")
            found += [] if place in roles() or Path(place).name in roles() else [word]
        elif path.startswith("STATE/"):
            found += [] if f"fleet_state_dir }}}}/{path.split('/')[1]}" in roles() else [word]
        elif path.startswith(("inventory/example", "inventory/lab", "requirements/", "tests/")):
            found += [] if (ROOT / path).exists() else [word]
    return found


@cache
def text_of(runner: str) -> str:
    """All of the test, scenario or benchmark; fails when it is not there."""
    kind, _, name = runner.partition(" ")
    if kind == "molecule":
        files = sorted((ROOT / f"roles/{name}/molecule/default").rglob("*.yml"))
    elif kind == "bench-control-plane":
        files = sorted((ROOT / "tests/bench/control_plane").glob("*.py"))
        assert f'"{name}": ' in (ROOT / "tests/bench/control_plane/__main__.py").read_text(), runner
    else:
        path, _, function = runner.partition("::")
        files = [ROOT / path]
        tree = ast.parse(files[0].read_text())
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, runner
    assert files, runner
    return "\n".join(path.read_text() for path in files)


def lacks(shape: str, runners: list[str], pages: set[str]) -> list[str]:
    """Words of a command that stand in none of the tests which are said to run it.

    A test that names the page takes the command from there.
    """
    text = "\n".join(text_of(runner) for runner in runners)
    if "for page in PAGES" in text or any(f"/{page}" in text for page in pages):
        return []
    return [word for word in words_of(shape) if not re.search(rf"(?<![\w-]){_either(word)}(?![\w-])", text)]


def _either(word: str) -> str:
    """A command of ours is named as on the page, or by its module."""
    return re.escape(word).replace(r"\-", "[-_]")


def runners(shape: str) -> list[str]:
    return [runner for runner, shapes in TABLE["runs"].items() if shape in shapes]


def shapes(part: str) -> set[str]:
    return {shape for named in TABLE[part].values() for shape in (named["commands"] if part == "nothing" else named)}


PAGES_OF: dict[str, set[str]] = {}
for one in RUN:
    PAGES_OF.setdefault(one.shape, set()).add(one.page)


def test_there_are_runbooks() -> None:
    assert len(PAGES) > 25
    assert len(RUN) > 150


@pytest.mark.slow
@pytest.mark.parametrize("command", ALL, ids=lambda one: f"{one.page}: {one.line}"[:70])
def test_what_a_command_names_is_there(command: Command) -> None:
    assert [word for words in command.parts for word in missing(words)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("ansible-playbook -i inventory/prod playbooks/etcd_restored.yml", "playbooks/etcd_restored.yml"),
        ("ansible-playbook -i inventory/prod playbooks/upgrade.yml -e parts=all", "parts"),
        ("ansible-playbook -i inventory/prod site.yml --dry-run", "--dry-run"),
        ("ansible-playbook -i inventory/prod site.yml -l gpu_node", "gpu_node"),
        ("ansible-playbook -i inventory/prod site.yml --tags preflights", "preflights"),
        ("ansible -i inventory/prod gpu-1 -m muster.fleet.gpu_fact", "muster.fleet.gpu_fact"),
        ("ansible -i inventory/prod gpu_node -a nvidia-smi", "gpu_node"),
        ("make labs", "labs"),
        ("systemctl status muster-etcd-backups", "muster-etcd-backups"),
        ("kubectl get nodeadmission.x", "nodeadmission.x"),
        ("kubectl drains HOST", "drains"),
        ("cat /etc/kubernetes/pki/api-server.crt", "/etc/kubernetes/pki/api-server.crt"),
        ("openssl x509 -in STATE/certificates/a.crt", "STATE/certificates/a.crt"),
        ("pip install -r requirements/nodes.txt", "requirements/nodes.txt"),
        ("python -m tests.laboratory up", "tests.laboratory"),
    ],
)
def test_what_is_not_there_is_seen(line: str, wrong: str) -> None:
    assert missing(Command("", line).parts[0]) == [wrong]


@pytest.mark.parametrize("command", RUN, ids=lambda one: f"{one.page}: {one.line}"[:70])
def test_a_test_runs_it_or_the_table_says_why_none_does(command: Command) -> None:
    if command.parts[0][0] == "kubectl":
        return
    assert (command.shape in shapes("nothing")) is not bool(runners(command.shape)), command.shape


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_where_muster_has_its_kubeconfig_from(page: Path) -> None:
    lines = [command.line for command in commands(page)]
    without = [line for line in lines if OF_THE_CLUSTER.match(line) and "--kubeconfig" not in line]
    assert not without or any(line.startswith("export KUBECONFIG=") for line in lines), f"{without}: from where?"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_what_state_stands_for(page: Path) -> None:
    text = page.read_text()
    assert "STATE/" not in text or re.search(r"`STATE` (?:is|\(your)\b", text)


def test_what_is_not_tested_stands_on_the_pages_for_it_alone() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("collections/**/*.md")]
    said = {str(page.relative_to(ROOT)) for page in pages if SAYS_SO.search(page.read_text())}
    assert said <= set(UNTESTED)
    assert SAYS_SO.search("It takes hours: no test\nruns it.")
    assert SAYS_SO.search("## Not tested\n")


def test_the_table_has_no_command_that_no_page_has() -> None:
    assert shapes("runs") | shapes("nothing") <= {command.shape for command in RUN}


@pytest.mark.parametrize("shape", sorted(shapes("runs")))
def test_what_runs_it_is_there_and_names_it(shape: str) -> None:
    assert lacks(shape, runners(shape), PAGES_OF[shape]) == []


@pytest.mark.parametrize(
    "runner",
    ["tests/unit/cli/test_demo.py::test_none", "molecule etcds", "bench-control-plane restores"],
)
def test_a_runner_that_is_not_there_is_seen(runner: str) -> None:
    with pytest.raises(AssertionError):
        text_of(runner)


def test_a_test_that_does_not_name_the_command_does_not_run_it() -> None:
    demo = ["tests/unit/cli/test_demo.py::test_a_demo_leaves_this_host_alone"]
    assert lacks("gpu-burnin demo --sick", demo, {"README.md"}) == []
    assert lacks("gpu-burnin demo --well", demo, {"README.md"}) == ["--well"]
    assert lacks("ansible-playbook playbooks/repair.yml -l -e x=", demo, set()) == ["playbooks/repair.yml", "x"]
