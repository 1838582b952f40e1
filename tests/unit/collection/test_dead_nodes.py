"""A node that is down, or dies on the way, is normal: each playbook goes on with the others and names it.

The real plays of the playbooks run over up to 62 names on a connection that answers in the place of hosts; one name is
dead from the start, one dies in the middle. Roles of site.yml and of upgrades are stand-ins of one task.

Only here: how Ansible itself ends the playbooks with dead nodes, and what the screen says of them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.playbook_fixtures import warm_playbook
from tests.support.site_plays import IMPORT, roles_of, site_plays
from tests.support.upgrade_site import Site

ROOT = Path(__file__).resolve().parents[3]
PLUGINS = ROOT / "tests/support/connection_plugins"
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PlaybookIn = Callable[[Path], Playbook]
# Of more than 60 the screen has no line for each, and a file does.
MANY = tuple(f"gpu-{number:03d}" for number in range(1, 63))
NAMES = MANY[:16]
# One never answers, one dies on the way.
DEAD, DYING = "gpu-007", "gpu-012"
# Ansible's code where a host was unreachable, and where a task has failed.
UNREACHABLE, FAILED = 4, 2
SILENT = "Hosts could not be used over SSH, and were left out"


@dataclass
class Hosts:
    """The hosts, and Ansible to run plays over them."""

    folder: Path
    play: Playbook
    names: tuple[str, ...] = NAMES
    variables: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    dead: tuple[str, ...] = (DEAD,)
    dies: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ("gpu_nodes",)

    @property
    def well(self) -> set[str]:
        """Those that stay."""
        return {*self.names} - {DEAD, DYING}

    def run(self, plays: Path | list[dict[str, Any]], *arguments: str) -> tuple[int, str]:
        """How the plays end, and what is on the screen."""
        plan = {"results": self.results, "commands": self.commands, "dead": self.dead, "dies": self.dies}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        shared = {
            "ansible_connection": "stand_in",
            "ansible_pipelining": True,
            "ansible_python_interpreter": sys.executable,
            "fleet_name": "test",
            "fleet_state_dir": str(self.folder / "state"),
        }
        groups = {group: {"hosts": {name: {"ansible_host": name} for name in self.names}} for group in self.groups}
        inventory = {"all": {"vars": {**shared, **self.variables}, "children": groups}}
        (self.folder / "hosts.json").write_text(json.dumps(inventory))
        if isinstance(plays, list):
            (self.folder / "play.yml").write_text(yaml.safe_dump(plays, sort_keys=False))
            plays = self.folder / "play.yml"
        done = self.play(str(plays), "-f", "4", *arguments, inventory="hosts.json")
        return done.returncode, done.stdout + done.stderr

    def reached(self, module: str) -> set[str]:
        """The hosts on which the module was called."""
        lines = [line.split() for line in (self.folder / "log").read_text().splitlines()]
        return {host for host, called in lines if called == module}

    def tries(self) -> dict[str, int]:
        """How often each dead host was called: each costs a run the time after which SSH gives up."""
        lines = (self.folder / "tries").read_text().split() if (self.folder / "tries").exists() else []
        return dict(Counter(lines))

    def role(self, name: str, tasks: list[dict[str, Any]], entry: str = "main") -> None:
        """A stand-in of a role."""
        folder = self.folder / "roles" / name / "tasks"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{entry}.yml").write_text(yaml.safe_dump(tasks))


@pytest.fixture(scope="module")
def on_stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PlaybookIn, Path]]:
    """Ansible with the connection of the hosts, and the folder that their plan is found by."""
    home, link = tmp_path_factory.mktemp("ansible"), tmp_path_factory.mktemp("hosts") / "now"
    settings = {
        "ANSIBLE_CONNECTION_PLUGINS": str(PLUGINS),
        "ANSIBLE_CALLBACKS_ENABLED": "muster.fleet.silent_hosts",
        "ANSIBLE_ROLES_PATH": str(link / "roles"),
        "MUSTER_STAND_IN": str(link),
    }
    with warm_playbook(home, **settings) as made:
        yield made, link


@pytest.fixture
def hosts(on_stand_ins: tuple[PlaybookIn, Path], tmp_path: Path) -> Iterator[Hosts]:
    made, link = on_stand_ins
    link.symlink_to(tmp_path)
    yield Hosts(tmp_path, made(tmp_path))
    link.unlink()


# Actions that run on the controller whatever host they are of.
ON_CONTROLLER = frozenset(
    {f"ansible.builtin.{name}" for name in ("add_host", "assert", "debug", "fail", "meta", "set_fact")}
    | {f"muster.fleet.{name}" for name in ("driver_upgrade", "fleet_summary", "kube_upgrade", "preflight_report")}
)
OF_NODES = re.compile(r"gpu_nodes|system_nodes|driver_upgrade|upgrade_\{\{|^all$|'all' if")
# Keywords with which one node would end the run for all, and those that have them nevertheless.
ENDS_ALL = frozenset({"any_errors_fatal", "max_fail_percentage"})
ALLOWED = {
    # Of Kubernetes the first failure is the last, by its page; a node that does not answer is none.
    "upgrade_phase.yml: Upgrade the hosts of the phase {{ upgrade_phase | default('none') }}: max_fail_percentage",
    # It runs on the controller, and judges how many nodes are silent.
    "preflight: Report all problems of all hosts: any_errors_fatal",
}


def tasks_in(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Also those in blocks."""
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_in(task.get(part) or [])


def hanging_on_one(where: str, plays: list[dict[str, Any]]) -> set[str]:
    """What in these plays over nodes one dead node would end for all."""
    found = set()
    for play in (play for play in plays if OF_NODES.search(str(play.get("hosts", "")))):
        found |= {f"{where}: {play['name']}: {key}" for key in ENDS_ALL & set(play)}
        own = [*play.get("pre_tasks", []), *play.get("tasks", []), *play.get("post_tasks", [])]
        found |= hanging_tasks(f"{where}: {play['name']}", own)
    return found


def hanging_tasks(where: str, tasks: list[dict[str, Any]]) -> set[str]:
    found = set()
    for task in tasks_in(tasks):
        name = f"{where}: {task.get('name', '')}"
        found |= {f"{name}: {key}" for key in ENDS_ALL & set(task)}
        elsewhere = task.get("delegate_to", "")
        if elsewhere not in ("", "localhost"):
            found.add(f"{name}: delegate_to")
        if task.get("run_once") and elsewhere != "localhost" and not ON_CONTROLLER & set(task):
            found.add(f"{name}: run_once")
    return found


def node_roles() -> set[str]:
    """The roles of the plays over nodes of site.yml, and those that go on running nodes."""
    of_site = {role for play in site_plays() if OF_NODES.search(str(play["hosts"])) for role in roles_of(play)}
    return of_site - {"fleet", "node_admission"} | {"driver_upgrade", "repair"}


def test_nothing_of_a_play_over_nodes_hangs_on_one_of_them() -> None:
    found = hanging_on_one("site.yml", site_plays())
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        found |= hanging_on_one(path.name, yaml.safe_load(path.read_text()))
    for role in node_roles():
        for path in (ROOT / "roles" / role / "tasks").glob("*.yml"):
            found |= hanging_tasks(role, yaml.safe_load(path.read_text()))
    assert found == ALLOWED


def test_a_play_of_batches_goes_on_after_a_batch_of_dead_nodes() -> None:
    """Ansible ends the run after a batch of which no host is left, unless it may ignore that."""
    batches = {
        f"{path.name}: {play['name']}": play.get("ignore_unreachable", False)
        for path in (ROOT / "playbooks").glob("*.yml")
        for play in yaml.safe_load(path.read_text())
        if "serial" in play and OF_NODES.search(str(play["hosts"]))
    }
    assert batches == {
        "driver_upgrade.yml: Change the driver, one batch after the other": True,
        "repair.yml: Repair of the named GPU nodes": True,
        # A whole batch that is lost is no node that is down: see the test below.
        "upgrade_phase.yml: Upgrade the hosts of the phase {{ upgrade_phase | default('none') }}": False,
    }


@pytest.mark.parametrize(
    ("play", "task", "found"),
    [
        ({"any_errors_fatal": True}, {}, "p: any_errors_fatal"),
        ({"max_fail_percentage": 0}, {}, "p: max_fail_percentage"),
        ({}, {"ansible.builtin.command": "true", "run_once": True}, "p: t: run_once"),
        ({}, {"ansible.builtin.command": "true", "run_once": True, "delegate_to": "localhost"}, ""),
        ({}, {"ansible.builtin.set_fact": {"a": 1}, "run_once": True}, ""),
        (
            {},
            {"ansible.builtin.command": "true", "delegate_to": "{{ groups['gpu_nodes'] | first }}"},
            "p: t: delegate_to",
        ),
        ({}, {"block": [{"name": "t", "muster.fleet.unit": {}, "any_errors_fatal": True}]}, "p: t: any_errors_fatal"),
        ({"hosts": "etcd", "any_errors_fatal": True}, {}, ""),
    ],
)
def test_what_hangs_on_one_node_is_found(play: dict[str, Any], task: dict[str, Any], found: str) -> None:
    made = {"name": "p", "hosts": "gpu_nodes", "tasks": [{"name": "t", **task}], **play}
    assert hanging_on_one("x", [made]) == ({f"x: {found}"} if found else set())


def call(module: str, **more: Any) -> dict[str, Any]:
    """A task that calls the module on the host."""
    return {"name": f"Call {module}", f"muster.fleet.{module}": {}, **more}


def plays_of(playbook: str) -> dict[str, dict[str, Any]]:
    """The plays of a playbook by their names, with stand-ins for the roles of nodes."""
    return {play["name"]: play for play in yaml.safe_load((ROOT / f"playbooks/{playbook}.yml").read_text())}


def with_stand_ins(play: dict[str, Any]) -> dict[str, Any]:
    """The play with roles of the test's folder for those that it imports."""
    for task in play["tasks"]:
        if IMPORT in task:
            task[IMPORT]["name"] = task[IMPORT]["name"].removeprefix("muster.fleet.")
    return play


@pytest.mark.slow
def test_site_yml_goes_on_without_them_and_its_report_has_them(hosts: Hosts) -> None:
    hosts.names = MANY
    plays = [with_stand_ins(play) for play in site_plays() if re.search("gpu_nodes|all", str(play["hosts"]))]
    for task in (task for play in plays for task in play["tasks"] if IMPORT in task):
        hosts.role(task[IMPORT]["name"], [{"ansible.builtin.meta": "noop"}], task[IMPORT].get("tasks_from", "main"))
    hosts.role("preflight", [call("preflight", register="__preflight_facts")])
    hosts.role("container_runtime", [call("packages")])
    hosts.role("gpu_burnin", [call("burnin", register="__gpu_burnin_result")])
    hosts.role("node_admission", [call("kubelet_state")], "gate")
    hosts.variables = {"nvidia_driver_found": {}, "nvidia_fabricmanager_found": {}, "nvidia_dcgm_found": {}}
    hosts.results = {"burnin": {"verdict": "PASS", "reasons": []}}
    hosts.dies = {DYING: "modules.packages"}
    code, screen = hosts.run(plays)
    assert (code, hosts.tries()) == (UNREACHABLE, {DEAD: 1, DYING: 1}), screen[-4000:]
    assert hosts.reached("preflight") == {*hosts.well, DYING}
    assert hosts.reached("burnin") == hosts.reached("kubelet_state") == hosts.well
    listed = (hosts.folder / "state/fleet.txt").read_text()
    assert re.search(rf"{DEAD} .*LEFT OUT: does not answer SSH", listed), listed[:2000]
    assert re.search(rf"{DYING} .*FAILED: see the failed task above", listed), listed[:2000]
    assert SILENT in screen and f"{DEAD}, {DYING}: " in screen.partition(SILENT)[2]


@pytest.mark.slow
def test_admit_yml_shows_the_nodes_before_it_fails_for_those_that_have_not_come(hosts: Hosts) -> None:
    hosts.names = MANY
    plays = plays_of("admit")
    gates, wait = (
        with_stand_ins(plays["Read the gates of the nodes"]),
        with_stand_ins(plays["Wait for the nodes that passed"]),
    )
    for entry in ("gate", "provision", "arrived"):
        tasks = yaml.safe_load((ROOT / f"roles/node_admission/tasks/{entry}.yml").read_text())
        late = f"after 120 s these nodes, whose own gate is open, have not come:\n- {DYING}: no Node"
        result = {"nodes": [], "notes": [], "late": late}
        hosts.role(
            "node_admission",
            [{"ansible.builtin.set_fact": {"__node_admission_result": result}}] if entry == "provision" else tasks,
            entry,
        )
    code, screen = hosts.run([gates, wait])
    assert (code, hosts.tries()) == (UNREACHABLE, {DEAD: 1}), screen[-3000:]
    assert hosts.reached("kubelet_state") == {*hosts.well, DYING}
    assert DEAD in (hosts.folder / "state/gpu-nodes.txt").read_text()
    assert screen.index("gpu-nodes.txt") < screen.index(f"have not come:\n- {DYING}: no Node")
    assert f"{DEAD}: " in screen.partition(SILENT)[2]


@pytest.mark.slow
def test_burnin_yml_tests_the_others(hosts: Hosts) -> None:
    built = {"changed": False, "build": "1", "sha256": "a" * 64, "path": "/w/1.tar"}
    print_it = [sys.executable, "-c", f"print({json.dumps(json.dumps(built))})"]
    extra = {"__gpu_burnin_wheelhouse_command": print_it, "gpu_burnin_cuda": "13", "fleet_feed_limits": {}}
    hosts.results = {"wheel_venv": {"archive_needed": False}, "burnin": {"verdict": "PASS", "why": "it passed"}}
    hosts.dies = {DYING: "modules.burnin"}
    code, screen = hosts.run(ROOT / "playbooks/burnin.yml", "--limit", "gpu_nodes", "-e", json.dumps(extra))
    assert (code, hosts.tries()) == (UNREACHABLE, {DEAD: 1, DYING: 1}), screen[-4000:]
    assert hosts.reached("service") == {*hosts.well, DYING}
    assert hosts.reached("burnin") == hosts.well
    assert {*re.findall(r"(gpu-\d+): PASS \(it passed\)", " ".join(screen.split()))} == hosts.well
    assert f"{DEAD}, {DYING}: " in screen.partition(SILENT)[2]


@pytest.mark.slow
def test_rotate_certificates_yml_leaves_a_silent_node_behind_by_its_name(hosts: Hosts) -> None:
    plays = plays_of("rotate_certificates")
    look, step = plays["Read what each host trusts and presents"], plays["Do the step on the controller"]
    # What it would do to the CAs: test_pki_rotation.py.
    step["tasks"] = [task for task in step["tasks"] if IMPORT not in task]
    exchange = [{"authority": "kubernetes"}]
    hosts.results = {"pki_scan": {"lacking": [], "signed_by_old": []}}
    hosts.dies = {DYING: "modules.pki_scan"}
    begin = {
        "hosts": "localhost",
        "gather_facts": False,
        "tasks": [{"ansible.builtin.set_fact": {"__pki_rotation": {"under_way": exchange}}}],
    }
    code, screen = hosts.run([begin, look, step], "-e", "step=reissue")
    assert (code, hosts.tries()) == (0, {DEAD: 1, DYING: 1}), screen[-3000:]
    assert hosts.reached("pki_scan") == hosts.well
    said = " ".join(screen.split())
    assert f"Nodes that did not answer: {DEAD}, {DYING}." in said, said[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [4, 1])
def test_an_upgrade_of_nodes_goes_on_after_one_that_dies(hosts: Hosts, at_once: int) -> None:
    """Unless the dead one is the whole of its batch: Ansible ends a run there."""
    (phase,) = yaml.safe_load((ROOT / "playbooks/upgrade_phase.yml").read_text())
    given = {"upgrade_phase": "nodes", "kube_binaries_names": [], "upgrade_steps": [{"role": "step"}]}
    phase |= {"vars": phase["vars"] | given | {"upgrade_serial": [at_once]}}
    text = json.dumps([phase]).replace("muster.fleet.{{", "{{")
    shutil.copytree(ROOT / "playbooks/files", hosts.folder / "files")
    hosts.role("step", [call("packages")])
    hosts.groups = ("gpu_nodes", "upgrade_nodes")
    hosts.variables = {"kube_binaries_checksums": {}, "ansible_forks": 4}
    # First contact has left out the dead one: it is in no batch.
    hosts.names, hosts.dead = tuple(name for name in NAMES if name != DEAD), ()
    hosts.dies = {DYING: "modules.packages"}
    code, screen = hosts.run(json.loads(text))
    assert (code, hosts.tries()) == (UNREACHABLE, {DYING: 1}), screen[-3000:]
    names = {*hosts.names} if at_once > 1 else {name for name in hosts.names if name < DYING}
    assert hosts.reached("upgrade_facts") == names - {DYING}
    assert f"{DYING}: " in screen.partition(SILENT)[2]


LOOK = {
    "boot_id": "b1",
    "machine_id": "m1",
    "dmi": {"product_serial": "S1", "product_name": "X8"},
    "slots": {},
    "working": [],
    "status": {
        "evidence": {
            "problem": "", "this_boot": True, "verdict": "FAIL", "action": "reset_gpu", "run_id": "r1",
            "level": "quick", "reasons": [{"code": "XID_FATAL", "gpu": "GPU-1"}],
        },
        "gate": {"open": False, "message": "closed: FAIL"},
        "unit": {"running": False},
        "maintenance": {"near": ""},
    },
}  # fmt: skip


@pytest.mark.slow
def test_a_node_that_dies_in_its_repair_does_not_keep_the_others_from_theirs(hosts: Hosts) -> None:
    hosts.names, hosts.dead = ("gpu-1", "gpu-2", "gpu-3"), ("gpu-2", "gpu-3")
    site = Site(hosts.folder, names=hosts.names)
    hosts.variables = {"repair_kubeconfig": str(site.kubeconfig), "repair_boot_timeout_s": 1}
    hosts.commands = {"repair look": json.dumps(LOOK)}
    hosts.dies = {"gpu-1": "modules.gpu_reset"}
    code, screen = hosts.run(ROOT / "playbooks/repair.yml", "--limit", "gpu_nodes")
    said = " ".join(screen.split())
    site.api.close()
    assert code == FAILED, screen[-4000:]
    assert hosts.tries() == {"gpu-1": 4, "gpu-2": 1, "gpu-3": 1}, screen[-4000:]
    assert "repair" not in site.spec("gpu-1") and "hold" in site.spec("gpu-1"), "a technician has it"
    for name in ("gpu-2", "gpu-3"):
        assert f"{name} was not repaired: {name}: it does not answer by SSH" in said
