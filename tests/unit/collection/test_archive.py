"""The archive of the collection, installed where there is no checkout: roles and playbooks run by their full names.

Only here: that the archive alone has all that Ansible's own programs find, list, document and run.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin import __version__
from tests.support.clocks import PATIENCE_S
from tests.support.example_inventory import filled_example
from tests.support.server_helpers import QuietHandler, listening
from tests.support.site_plays import roles_of, site_plays
from tools import collection, wheelhouse

pytestmark = pytest.mark.slow

Command = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path.parent.parent.name for path in ROOT.glob("roles/*/meta/main.yml"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collection.build(ROOT, tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def ansible(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Runs a command of Ansible where only the installed archive can be found."""
    home = tmp_path_factory.mktemp("controller")
    (home / "ansible.cfg").write_text("[defaults]\n")
    (home / "bin").mkdir()
    # The host of the plays is this machine, where no systemd runs: one that knows no unit yet, as on a bare host.
    systemctl = home / "bin/systemctl"
    systemctl.write_text("#!/bin/sh\necho LoadState=not-found\n")
    systemctl.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MUSTER_"))}
    environment |= {
        "ANSIBLE_CONFIG": str(home / "ansible.cfg"),
        "ANSIBLE_HOME": str(home / "home"),
        "ANSIBLE_LOCAL_TEMP": str(home / "tmp"),
        "ANSIBLE_COLLECTIONS_PATH": str(home / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        # As `pip install` of the collection's folder gives it; the tests' environment has the checkout's.
        "PYTHONPATH": str(home / "collections/ansible_collections/muster/fleet"),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
    }

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name(program)), *arguments]
        return subprocess.run(
            command, cwd=home, env=environment, text=True, capture_output=True, timeout=PATIENCE_S, check=False
        )

    # kubernetes.core is in the Python environment already; asking for it would need the network.
    done = run("ansible-galaxy", "collection", "install", str(archive), "--no-deps", "-p", "collections")
    assert done.returncode == 0, done.stdout + done.stderr
    return run


@pytest.fixture(scope="module")
def installed(ansible: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the installed collection."""
    done = ansible("ansible-galaxy", "collection", "list", "muster.fleet")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("# "))
    return Path(line.removeprefix("# "), "muster/fleet")


def site_roles() -> set[str]:
    """The roles that site.yml names, in plays and in tasks."""
    return {f"muster.fleet.{role}" for play in site_plays() for role in roles_of(play)}


def test_the_archive_holds_what_a_controller_needs_and_no_tests(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        manifest = tar.extractfile("MANIFEST.json")
        assert manifest is not None
        about = json.load(manifest)["collection_info"]
    assert (about["version"], about["repository"] or "") == (__version__, collection.repository_url(ROOT))
    names = {member.name for member in members}
    assert {f"roles/{role}/meta/argument_specs.yml" for role in ROLES} <= names
    assert {"playbooks/site.yml", "playbooks/burnin.yml", "playbooks/admit.yml", "tools/wheelhouse.py"} <= names
    assert not [member.name for member in members if not (member.isfile() or member.isdir())]
    assert not [name for name in names if {"molecule", "__pycache__", "tests"} & set(Path(name).parts)]


def test_every_role_of_the_site_resolves(ansible: Command, installed: Path) -> None:
    # These have playbooks of their own, which nobody runs but for the nodes that he names.
    others = {"muster.fleet.repair", "muster.fleet.driver_upgrade"}
    assert {f"muster.fleet.{role}" for role in ROLES} == site_roles() | others
    done = ansible("ansible-playbook", "muster.fleet.site", "--list-tasks", "-i", str(installed / "inventory/example"))
    assert done.returncode == 0, done.stdout + done.stderr
    # The role fleet has no tasks.
    assert [name for name in sorted(site_roles()) if f" {name} : " not in done.stdout] == ["muster.fleet.fleet"]


def test_the_site_checks_the_inventory_against_the_roles_of_the_archive(
    ansible: Command, installed: Path, tmp_path: Path
) -> None:
    inventory = filled_example(tmp_path / "inventory", installed / "inventory/example")
    group = inventory / "group_vars/all.yml"
    group.write_text(group.read_text() + "etcd_quota_byts: 8589934592\n")
    state = f"fleet_state_dir={tmp_path / 'state'}"
    done = ansible("ansible-playbook", "muster.fleet.site", "-i", str(inventory), "-e", state)
    assert done.returncode == 2
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("- ")]
    assert len(said) == 1, said
    assert said[0].endswith("etcd_quota_byts is not a variable of role etcd; did you mean etcd_quota_bytes?")


def test_a_role_runs_by_its_full_name(ansible: Command, installed: Path, tmp_path: Path) -> None:
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False}
    play["vars"] = {"ansible_python_interpreter": "{{ ansible_playbook_python }}", "fleet_state_dir": str(tmp_path)}
    play["roles"] = ["muster.fleet.fleet", "muster.fleet.pki"]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    command = ("ansible-playbook", str(tmp_path / "play.yml"), "-i", str(installed / "inventory/example"))
    first = ansible(*command)
    assert "changed=1" in first.stdout, first.stdout + first.stderr
    assert (tmp_path / "pki/etcd/ca.crt").exists()
    again = ansible(*command)
    assert "changed=0" in again.stdout and "failed=0" in again.stdout, again.stdout + again.stderr


def test_a_playbook_runs_by_its_full_name(ansible: Command, installed: Path, tmp_path: Path) -> None:
    """In check mode: the wheelhouse's name is made from the archive, and every task of the role finds its files."""
    inventory = ("-i", str(installed / "inventory/example"), "-e", f"fleet_state_dir={tmp_path}")
    refused = ansible("ansible-playbook", "muster.fleet.burnin", *inventory)
    assert refused.returncode == 2
    assert "tests the hosts you name and nothing else" in refused.stdout + refused.stderr
    here = ["--connection", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
    asked: list[str] = []

    class Mirror(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.reply(404)

    with listening(Mirror) as url:
        here += ["-e", f"fleet_wheelhouse_url={url}"]
        done = ansible("ansible-playbook", "muster.fleet.burnin", *inventory, *here, "--check", "--limit", "gpu-001")
    assert done.returncode == 0, done.stdout + done.stderr
    tasks = {part.split("]", 1)[0]: part for part in done.stdout.split("TASK [muster.fleet.gpu_burnin : ")}
    assert "Configure gpu-burnin, run its agent, and have each boot tested" in tasks
    # It would change the host, by what it would fetch then.
    assert "changed: [gpu-001]" in tasks["Install gpu-burnin"]
    assert "skipping: [gpu-001]" in tasks["Install gpu-burnin on hosts that lack this build and have no mirror for it"]
    assert asked == []
    assert list(tmp_path.iterdir()) == []


def test_the_archive_makes_the_same_wheelhouse_as_the_checkout(installed: Path) -> None:
    def key(root: Path) -> str:
        requirements = root / "requirements"
        wanted = wheelhouse.Wanted(
            (requirements / "node.txt",), requirements / "controller.txt", ("3.11",), ("x86_64",)
        )
        return wheelhouse.build_key(root, wanted)

    assert key(installed) == key(ROOT)


def names_of(kind: str) -> list[str]:
    """The full names of all plugins of a kind."""
    folder = ROOT / "collections/ansible_collections/muster/fleet/plugins" / kind
    return [f"muster.fleet.{path.stem}" for path in sorted(folder.glob("*.py"))]


# Calls of ansible-doc, each in a process of its own, forked once Ansible is loaded: their status, output and errors.
ANSIBLE_DOC = """
import json, os, sys, tempfile
from ansible.cli import doc
told = []
for arguments in json.loads(sys.argv[1]):
    files = [tempfile.TemporaryFile("w+") for _ in range(2)]
    child = os.fork()
    if not child:
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        try:
            doc.main(["ansible-doc", *arguments])
        except SystemExit as ended:
            sys.stdout.flush()
            sys.stderr.flush()
            # The others need the temporary folder, which Ansible removes as it ends.
            os._exit(ended.code or 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for file in files:
        file.seek(0)
    told.append([status, *(file.read() for file in files)])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def documentation(ansible: Command) -> dict[str, dict[str, Any]]:
    """What `ansible-doc` tells of everything in the collection, by its kind, which it has as pages to read, too."""
    kinds = {
        "module": names_of("modules"),
        "role": [f"muster.fleet.{role}" for role in ROLES],
        "filter": names_of("filter"),
    }
    calls = [["--metadata-dump", "muster.fleet"], *(["-t", kind, *names] for kind, names in kinds.items())]
    done = ansible("python", "-c", ANSIBLE_DOC, json.dumps(calls))
    assert (done.returncode, done.stderr) == (0, "")
    (_, dump, _), *pages = ends = json.loads(done.stdout)
    assert [(status, errors) for status, _, errors in ends] == [(0, "")] * len(calls)
    found: dict[str, dict[str, Any]] = json.loads(dump)["all"]
    for (_, page, _), (kind, names) in zip(pages, kinds.items(), strict=True):
        assert sorted(found[kind]) == sorted(names)
        assert [name for name in names if name.upper() not in page.upper()] == []
    return found


def documented(options: Mapping[str, Any], inner: str) -> Iterator[tuple[str, object]]:
    """The options as (name, what AnsibleModule goes by), each with the description that it must have."""
    for name, option in options.items():
        assert option["description"], name
        yield (
            name,
            {key: option.get(key) for key in ("elements", "default", "choices")}
            | {
                "type": option["type"],
                "required": option.get("required", False),
                "inner": dict(documented(option.get(inner) or {}, inner)),
            },
        )


def taken(options: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The same of an argument spec."""
    for name, option in options.items():
        yield (
            name,
            {key: option.get(key) for key in ("elements", "default", "choices")}
            | {
                "type": option["type"],
                "required": option.get("required", False),
                "inner": dict(taken(option.get("options") or {})),
            },
        )


def tasks_of(examples: str, name: str) -> list[dict[str, Any]]:
    """The arguments of each task that calls the module; examples are tasks or plays."""
    items = yaml.safe_load(examples)
    tasks = [task for item in items for task in item.get("tasks", [item])]
    return [task[name] for task in tasks if name in task]


def test_ansible_doc_tells_what_each_module_takes_and_gives(documentation: dict[str, dict[str, Any]]) -> None:
    for name, one in documentation["module"].items():
        doc = one["doc"]
        module = importlib.import_module(f"ansible_collections.muster.fleet.plugins.modules.{doc['module']}")
        options = dict(documented(doc["options"], "suboptions"))
        assert options == dict(taken(module.ARGUMENT_SPEC)), name
        assert doc["short_description"] and doc["description"] and doc["author"], name
        assert doc["attributes"]["check_mode"]["support"] == "full", name
        assert one["return"] and all({"description", "type", "returned"} <= set(v) for v in one["return"].values()), (
            name
        )
        tasks = tasks_of(one["examples"], name)
        assert tasks and all(set(task) <= set(options) for task in tasks), name


def test_ansible_doc_tells_all_of_each_role(documentation: dict[str, dict[str, Any]]) -> None:
    for name, one in documentation["role"].items():
        spec = yaml.safe_load((ROOT / "roles" / name.rpartition(".")[2] / "meta/argument_specs.yml").read_text())
        entries = spec["argument_specs"]
        assert set(one["entry_points"]) == set(entries), name
        for entry, shown in one["entry_points"].items():
            assert shown["short_description"], (name, entry)
            options = dict(documented(shown.get("options") or {}, "options"))
            assert options == dict(taken(entries[entry].get("options") or {})), (name, entry)


def test_ansible_doc_tells_all_of_each_filter(documentation: dict[str, dict[str, Any]]) -> None:
    for name, one in documentation["filter"].items():
        assert one["doc"]["short_description"] and one["examples"] and one["return"], name
        dict(documented(one["doc"]["options"], "suboptions"))
