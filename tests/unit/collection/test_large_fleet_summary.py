"""The end of a run of thousands of hosts: some 60 lines, a list with every host, each host's variables read once.

Only here: the summary in Ansible itself, with more hosts than a screen holds.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.plugin_utils.fleet_screen import (
    HOSTS_SHOWN,
    Surroundings,
    listed,
    screen,
)
from ansible_collections.muster.fleet.plugins.plugin_utils.host_states import host_states

from tests.support.site_plays import site_plays

AROUND = Surroundings("/state", ["inventory/prod"], ["etcd", "etcd_events"])
LIST = "/state/fleet.txt"
LINES = 60


class Steps(list[str]):
    """A list that counts how many of its items were looked at."""

    taken = 0

    def __iter__(self) -> Iterator[str]:
        self.taken += len(self)
        return super().__iter__()

    def __contains__(self, item: object) -> bool:
        self.taken += len(self)
        return super().__contains__(item)


def node(number: int) -> dict[str, Any]:
    """The variables of a GPU node: most have passed, some are held, for as many reasons as there may be."""
    driver = {"nvidia_driver_found": {"held": "", "notes": [], "driver": {"loaded": "580.65.06"}}}
    if number % 50:
        return {**driver, "__gpu_burnin_result": {"verdict": "PASS", "reasons": []}}
    if number % 500 == 0:
        return {"__preflight_facts": {"unreachable": True}}
    gpus = [
        {"code": f"REASON_OF_A_KIND_{number % 400 + gpu}", "message": f"GPU {gpu} " + "of this node is not well " * 9}
        for gpu in range(8)
    ]
    order = {"sentence": f"Do what number {number % 7} says", "command": "gpu-burnin run"}
    driver["nvidia_driver_found"]["notes"] = ["what is asked is not what runs here " * 5] * 3
    return {**driver, "__gpu_burnin_result": {"verdict": "FAIL", "order": order, "reasons": gpus}}


def fleet(nodes: int) -> tuple[dict[str, Mapping[str, Any]], dict[str, Steps]]:
    names = [f"gpu-{number:04}" for number in range(1, nodes + 1)]
    found: dict[str, Mapping[str, Any]] = {name: node(number) for number, name in enumerate(names, 1)}
    control = {"etcd": ["etcd-1", "etcd-2"], "kube_apiserver": ["api-1"], "monitoring": ["mon-1"]}
    for hosts in control.values():
        found |= {host: {} for host in hosts}
    ready = [{"name": name, "state": "ready"} for number, name in enumerate(names, 1) if number % 50]
    found["localhost"] = {"__node_admission_result": {"nodes": ready}}
    return found, {**{group: Steps(hosts) for group, hosts in control.items()}, "gpu_nodes": Steps(names)}


def hosts_of(groups: Mapping[str, Steps]) -> list[str]:
    return [host for hosts in groups.values() for host in list.__iter__(hosts)]


@pytest.mark.parametrize("nodes", [250, 1000])
def test_each_host_is_read_once_and_each_group_walked_once(nodes: int) -> None:
    found, groups = fleet(nodes)
    hosts, read = hosts_of(groups), []

    def registered(host: str) -> Mapping[str, Any]:
        read.append(host)
        return found[host]

    well = Steps(hosts)
    states = host_states(hosts, registered, groups, well)
    screen(states, AROUND, LIST)
    listed(states, "all")
    assert sorted(read) == sorted([*hosts, "localhost"])
    assert {name: group.taken for name, group in groups.items()} == {name: len(group) for name, group in groups.items()}
    assert well.taken == len(hosts)


@pytest.mark.parametrize("nodes", [HOSTS_SHOWN, 250, 7500])
def test_the_screen_of_many_hosts_is_short_and_the_list_has_each(nodes: int) -> None:
    found, groups = fleet(nodes)
    hosts = hosts_of(groups)
    states = host_states(hosts, found.__getitem__, groups, [host for host in hosts if host != "etcd-2"])
    text = screen(states, AROUND, LIST).splitlines()
    assert len(text) <= LINES, "\n".join(text)
    assert text[0] == f"{len(hosts):,} hosts, each with its state in {LIST}"
    assert max(len(line) for line in text if "ansible-playbook" not in line and "gpu-burnin report" not in line) <= 80
    told = listed(states, "all")
    rows = told[2 : 2 + len(hosts)]
    assert [row.split()[0] for row in rows] == [state.name for state in states] and {*hosts} == {s.name for s in states}
    held = [state for state in states if state.held]
    for state in held:
        place = told.index(f"{state.name} is held{state.order}")
        assert told[place + 1 : place + 1 + len(state.reasons)] == [f"  {reason}" for reason in state.reasons]


def test_hosts_that_are_alike_are_counted_and_what_is_not_well_is_named() -> None:
    found, groups = fleet(120)
    hosts = hosts_of(groups)
    found["gpu-0050"] = found["gpu-0051"] = found["gpu-0052"] = {
        "__gpu_burnin_result": {
            "verdict": "FAIL",
            "order": {"sentence": "Power the machine off and on", "command": "gpu-burnin run"},
            "reasons": [{"code": "XID_FATAL", "message": "XID 79: fallen off the bus"}],
        }
    }
    out = ("gpu-0050", "gpu-0051", "gpu-0052", "gpu-0100")
    nodes = [entry for entry in found["localhost"]["__node_admission_result"]["nodes"] if entry["name"] not in out]
    found["localhost"] = {"__node_admission_result": {"nodes": nodes}}
    found["gpu-0100"] = {"nvidia_driver_found": {"held": "it does not load"}}
    states = host_states(hosts, found.__getitem__, groups, [host for host in hosts if host != "etcd-2"])
    text = screen(states, AROUND, LIST)
    table = [" ".join(line.split()) for line in text.split("\n\n")[0].splitlines()[1:]]
    assert table == [
        "1 etcd FAILED: see the failed task above (etcd-2)",
        "1 etcd up",
        "1 API server up",
        "116 GPU node ready PASS driver 580.65.06",
        "3 GPU node held FAIL: XID_FATAL (gpu-0050, gpu-0051, gpu-0052)",
        "1 GPU node held no driver as asked (gpu-0100)",
        "1 monitoring up",
    ]
    assert (
        "gpu-0050, gpu-0051, gpu-0052 are held. Power the machine off and on, then test\n"
        "  it again. Of gpu-0050:\n"
        "  XID_FATAL: XID 79: fallen off the bus\n"
        "gpu-0100 is held\n"
        "  driver: it does not load\n"
    ) in text


def test_kinds_that_do_not_fit_are_counted() -> None:
    found, groups = fleet(7500)
    hosts = hosts_of(groups)
    well = [host for host in hosts if host != "gpu-7499"]
    text = screen(host_states(hosts, found.__getitem__, groups, well), AROUND, LIST)
    # The rarest of all kinds.
    assert re.search(r"^ *1  GPU node +FAILED: see the failed task above  \(gpu-7499\)$", text, re.MULTILINE)
    shown = [int(count.replace(",", "")) for count in re.findall(r"^ *([0-9,]+)  \S", text, re.MULTILINE)]
    assert 7349 in shown and sum(shown) < len(hosts)
    assert re.search(r"^and [0-9]+ more kinds of states$", text, re.MULTILINE)
    assert re.search(r"^and [0-9]+ more kinds of reasons$", text, re.MULTILINE)
    assert "gpu-0500, gpu-1000, gpu-1500 and 12 more hosts: no answer to SSH" in " ".join(text.split())


def test_a_host_that_the_inventory_has_not_is_refused() -> None:
    with pytest.raises(FleetError, match="gpu-9 is not in the inventory"):
        host_states(["gpu-9"], lambda host: {} if host == "localhost" else None, {}, [])


Play = Callable[..., subprocess.CompletedProcess[str]]


def shown(ansible_playbook: Play, folder: Path, hosts: int, *arguments: str) -> str:
    """What the last play of site.yml says of so many hosts."""
    (report,) = (play for play in site_plays() if play["name"] == "Report the state of the fleet")
    (folder / "play.yml").write_text(json.dumps([{**report, "roles": []}]))
    group = {
        "hosts": {f"gpu-{number}": None for number in range(1, hosts + 1)},
        "vars": {"fleet_state_dir": str(folder / "state")},
    }
    (folder / "hosts.json").write_text(json.dumps({"all": {"children": {"gpu_nodes": group}}}))
    done = ansible_playbook("play.yml", *arguments, inventory="hosts.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"changed=0", done.stdout) and "changed=1" not in done.stdout
    return done.stdout.replace("\\n", "\n")


@pytest.mark.slow
def test_the_list_is_written_for_many_hosts_alone_and_a_small_run_leaves_it(
    ansible_playbook: Play, tmp_path: Path
) -> None:
    path, many = tmp_path / "state/fleet.txt", HOSTS_SHOWN + 1
    text = shown(ansible_playbook, tmp_path, many)
    assert f"{many} hosts, each with its state in {path}" in text and "gpu-1  GPU node" not in text
    lines = path.read_text().splitlines()
    assert re.fullmatch(rf"{many} hosts, 20\d\d-[-0-9]+T[0-9:]+Z", lines[0]) and path.stat().st_mode & 0o777 == 0o600
    assert [line.split() for line in lines[2 : 2 + many]] == [
        [name, "GPU", "node", "up"] for name in sorted(f"gpu-{number}" for number in range(1, many + 1))
    ]
    before = path.read_text()
    text = shown(ansible_playbook, tmp_path, many, "-l", "gpu-7,gpu-8")
    assert re.findall(r"gpu-\d+ +GPU node", text) == ["gpu-7  GPU node", "gpu-8  GPU node"] and "FAILED" not in text
    assert path.read_text() == before
    shown(ansible_playbook, tmp_path, many, "--check")
    assert path.read_text().splitlines()[0].endswith(", by a run with --check")


@pytest.mark.slow
def test_where_the_list_cannot_be_written_each_host_is_on_the_screen(ansible_playbook: Play, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    text = shown(ansible_playbook, tmp_path, HOSTS_SHOWN + 1)
    assert len(re.findall(r"gpu-\d+ +GPU node  up", text)) == HOSTS_SHOWN + 1
    assert "each with its state" not in text
