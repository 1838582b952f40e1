"""The first host on which a step of the control plane fails is the last: the next one is not touched.

By the real ansible-playbook, with hosts that are this machine: the throttled tasks of the roles, and the plays of each
playbook with its tasks replaced by one that fails or leaves a trace.

Only here: what serial, any_errors_fatal, max_fail_percentage and rescue do after one host that fails or is away.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.server_helpers import QuietHandler, listening

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
Play = dict[str, Any]
OPERATIONS = ("etcd_replace_member", "etcd_restore", "rotate_certificates", "rotate_encryption_key", "upgrade")
# Whose loss is the loss of the fleet; `upgrade_` are the groups of upgrade.yml, of the same hosts, and its phases.
CONTROL_PLANE = ("etcd", "etcd_events", "kube_apiserver", "api_loadbalancer", "upgrade_")


@pytest.fixture
def recording_server() -> Iterator[tuple[str, list[str]]]:
    """A server that answers 200, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.reply(200)

    with listening(Handler) as url:
        yield url, paths


def write(tmp_path: Path, plays: list[Play], hosts: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Playbook and inventory."""
    (tmp_path / "play.yml").write_text(json.dumps(plays))
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}, sort_keys=False))
    return str(tmp_path / "play.yml"), str(tmp_path / "hosts.yml")


# They check, or remove staging folders.
HARMLESS = (
    "Check every host",
    "Read what the cluster knows",
    "Remove the staging folders",
    "Back up both etcd clusters",
)
# Nobody listens there, for HTTP or for SSH.
NOBODY = "http://127.0.0.1:9"
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}


# The throttle, what is wrong with the last but one, and who is asked. Each is a play of one run.
THROTTLED: dict[str, tuple[int, dict[str, Any], list[str]]] = {
    # Without a throttle the hosts are asked beside each other, and each tells its own.
    "beside": (0, {"url": NOBODY}, ["beside-1", "beside-3"]),
    "failed": (1, {"url": NOBODY}, ["failed-1", "failed-2"]),
    # The last one, since it ends the run.
    "away": (1, AWAY, ["away-1"]),
}


@pytest.mark.slow
def test_a_throttled_task_ends_with_the_first_host_that_fails(
    tmp_path: Path, ansible_playbook: Playbook, recording_server: tuple[str, list[str]]
) -> None:
    url, paths = recording_server
    module = {"server": "{{ url }}", "deadline_s": 0, "checks": [{"path": "/{{ inventory_hostname }}"}]}
    plays: list[Play] = []
    hosts: dict[str, dict[str, Any]] = {}
    for name, (throttle, wrong, reached) in THROTTLED.items():
        task = {"muster.fleet.kube_health": module, "throttle": throttle}
        play = {"hosts": f"{name}-*", "gather_facts": False, "any_errors_fatal": name == "away", "tasks": [task]}
        plays.append(play)
        number = 3 if throttle == 0 else len(reached) + 2
        hosts |= {f"{name}-{n}": {"url": url, **(wrong if n == number - 1 else {})} for n in range(1, number + 1)}
    playbook, inventory = write(tmp_path, plays, hosts)
    done = ansible_playbook(playbook, inventory=inventory)
    said = " ".join((done.stdout + done.stderr).split())
    well = {name for _, _, reached in THROTTLED.values() for name in reached}
    assert sorted(paths) == sorted(f"/{name}" for name in well), said
    recap = re.findall(r"^(\S+) +: .*unreachable=(\d) +failed=(\d)", done.stdout, re.MULTILINE)
    assert {name for name, *ended in recap if ended != ["0", "0"]} == set(hosts) - well, said
    told = r"([\w-]+): nothing was done, because this has failed on (\S+) and goes from host to host; mend"
    assert set(re.findall(told, said)) == {("failed-4", "failed-3"), ("away-3", "away-2")}, said


def tasks_in(value: Any) -> Iterator[dict[str, Any]]:
    """Each task of a file of tasks, those of its blocks too."""
    for task in value or []:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_in(task.get(part))


def test_each_rolling_restart_is_by_a_module_that_ends_with_the_first_failure() -> None:
    throttled = [
        task
        for path in (*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("roles/*/handlers/*.yml"))
        for task in tasks_in(yaml.safe_load(path.read_text()))
        # What is throttled by a number of nodes goes on to the others: a node in doubt stays out by itself.
        if str(task.get("throttle", "")).strip('{}" ').endswith("1") and "muster.fleet.disk_latency" not in task
    ]
    folder = ROOT / "collections/ansible_collections/muster/fleet/plugins/action"
    fatal = {f"muster.fleet.{path.stem}" for path in folder.glob("*.py") if "one_after_the_other" in path.read_text()}
    assert fatal == {"muster.fleet.kube_health", "muster.fleet.etcd_member"}
    assert len(throttled) >= 7
    assert [task["name"] for task in throttled if not fatal & set(task)] == []


def plays_of(path: Path) -> Iterator[Play]:
    """The plays of a playbook; what it imports by its own name, with the `serial` of that import."""
    for play in yaml.safe_load(path.read_text()):
        if "ansible.builtin.import_playbook" not in play:
            yield play
        elif play["ansible.builtin.import_playbook"] == "upgrade_phase.yml":
            (phase,) = yaml.safe_load((path.parent / play["ansible.builtin.import_playbook"]).read_text())
            yield phase | {"name": play["name"], "serial": play["vars"].get("upgrade_serial", 1)}


def ways() -> dict[str, list[tuple[str, Play]]]:
    """The plays that change the control plane, with the names of their playbooks, by the way they go from host to host.

    Ansible counts a host that does not answer twice where any_errors_fatal stands, and then takes a batch for one that
    has not failed as a whole: beside `serial` it goes on with the next batch, and without with the next play.
    """
    found: dict[str, list[tuple[str, Play]]] = {}
    for path in (*(ROOT / f"playbooks/{name}.yml" for name in OPERATIONS), ROOT / "site.yml"):
        for play in plays_of(path):
            words = [key for key in ("serial", "any_errors_fatal", "max_fail_percentage") if key in play]
            words += ["rescue"] if any("rescue" in task for task in play.get("tasks", [])) else []
            if any(group in str(play["hosts"]) for group in CONTROL_PLANE) and not play["name"].startswith(HARMLESS):
                found.setdefault(" ".join(words), []).append((path.stem, play))
    return found


def test_there_are_no_other_ways() -> None:
    assert set(ways()) == set(EXPECTED)
    together = [play["name"] for _, play in ways()["serial max_fail_percentage rescue"] if play["serial"] != 1]
    assert together == ["Upgrade the nodes, one batch after the other"]
    fatal = [play for way, plays in ways().items() if "max_fail" in way for _, play in plays]
    # 0 of all, but of a phase's hosts in a shard of `muster roll`: test_upgrade_play.py.
    assert {play["max_fail_percentage"] for play in fatal} == {0, "{{ upgrade_most_failed | default(0) }}"}


NAMES = ("one", "two", "three", "four")
ONE_BY_ONE, BY_TWO = "serial max_fail_percentage rescue", "by two, serial max_fail_percentage rescue"
# Way: who is reached after the step that host two does not survive, and whom the next play reaches.
# Of two and two nodes, one that does not answer is left, as the page of the upgrade says.
REACHED: dict[str, dict[str, tuple[list[str], list[str]]]] = {
    ONE_BY_ONE: {"failed": (["one"], []), "unreachable": (["one"], [])},
    "any_errors_fatal max_fail_percentage": {"failed": ([], []), "unreachable": ([], [])},
    BY_TWO: {
        "failed": (["one"], []),
        "unreachable": (["one", "three", "four"], ["one", "three", "four"]),
    },
}
EXPECTED = {way.removeprefix("by two, ") for way in REACHED}


# What one run of Ansible has, one after the other: only its last play may end it.
RUNS = [
    (ONE_BY_ONE, ["failed"]),
    (ONE_BY_ONE, ["unreachable"]),
    ("any_errors_fatal max_fail_percentage", ["failed"]),
    ("any_errors_fatal max_fail_percentage", ["unreachable"]),
    (BY_TWO, ["unreachable", "failed"]),
]


def test_each_way_meets_each_fault() -> None:
    met = sorted((way, fault) for way, faults in RUNS for fault in faults)
    assert met == sorted((way, fault) for way, faults in REACHED.items() for fault in faults)


def step_and_after(way: str, fault: str, folder: Path) -> tuple[list[Play], dict[str, dict[str, Any]]]:
    """Two plays that leave a trace of each host, the first one in this way, and hosts of which the second is faulty."""

    def leave(trace: str) -> dict[str, Any]:
        return {"ansible.builtin.raw": f"echo {{{{ own }}}} >> {folder}/{fault}-{trace}"}

    real = next(
        play for _, play in ways()[way.removeprefix("by two, ")] if (way == BY_TWO) == (play.get("serial", 1) != 1)
    )
    # Raw: it fails, is unreachable and leaves a trace as a module does, without a Python for each task and host.
    tasks: list[dict[str, Any]] = [{"ansible.builtin.raw": "{{ ends_with | default('true') }}"}, leave("step")]
    if "rescue" in way:
        tasks = [{"block": tasks, "rescue": [{"ansible.builtin.fail": {"msg": "It failed."}}]}]
    play = {"hosts": f"{fault}-*", "gather_facts": False, "tasks": tasks}
    play |= {key: real[key] for key in ("serial", "any_errors_fatal", "max_fail_percentage") if key in real}
    if way == BY_TWO:
        play["serial"] = 2
    after = {"hosts": f"{fault}-*:elsewhere", "gather_facts": False, "tasks": [leave("after")]}
    second = AWAY if fault == "unreachable" else {"ends_with": "false"}
    hosts = {f"{fault}-{name}": {"own": name, **(second if name == "two" else {})} for name in NAMES}
    return [play, after], hosts


@pytest.mark.slow
@pytest.mark.parametrize(("way", "faults"), RUNS)
def test_what_goes_from_host_to_host_ends_with_the_first_that_fails(
    tmp_path: Path, ansible_playbook: Playbook, way: str, faults: list[str]
) -> None:
    plays: list[Play] = []
    hosts: dict[str, dict[str, Any]] = {}
    for fault in faults:
        added, faced = step_and_after(way, fault, tmp_path)
        plays, hosts = plays + added, hosts | faced
    playbook, inventory = write(tmp_path, plays, hosts)
    done = ansible_playbook(playbook, inventory=inventory)
    assert done.returncode != 0
    for fault in faults:
        left = [tmp_path.joinpath(f"{fault}-{trace}") for trace in ("step", "after")]
        step, then = ([name for name in NAMES if path.exists() and name in path.read_text().split()] for path in left)
        assert (step, then) == REACHED[way][fault], done.stdout
