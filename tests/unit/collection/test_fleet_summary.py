"""The screen at the end of site.yml."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.plugin_utils.fleet_screen import Surroundings, screen
from ansible_collections.muster.fleet.plugins.plugin_utils.host_states import host_states, without_backup

from tests.lab.model import read_groups

ROOT = Path(__file__).parents[3]

GROUPS = {"etcd": ["etcd-1"], "gpu_nodes": ["gpu-1", "gpu-2"], "kube_apiserver": ["api-1"]}
HOSTS = ["gpu-2", "gpu-1", "api-1", "etcd-1"]


def variables(**changes: Any) -> dict[str, Any]:
    """hostvars of a fleet in which gpu-1 is admitted and gpu-2 held."""
    common = {"fleet_state_dir": "/state", "ansible_inventory_sources": ["inventory/prod"]}
    result = {host: dict(common) for host in HOSTS}
    result["gpu-1"]["__gpu_burnin_result"] = {"verdict": "PASS", "reasons": [{"code": "SIMULATED", "message": "x"}]}
    result["gpu-2"]["__gpu_burnin_result"] = {
        "verdict": "FAIL",
        "order": {"sentence": "Power the machine off and on", "command": "gpu-burnin run"},
        "reasons": [{"code": "XID_FATAL", "message": "XID 79: fallen off the bus " + "y" * 200}],
    }
    nodes = [
        {"name": "gpu-1", "state": "ready", "simulated": True, "verdict": "pass", "reasons": []},
        {"name": "gpu-2", "state": "absent", "simulated": False, "verdict": None, "reasons": []},
    ]
    return result | {"localhost": {"__node_admission_result": {"nodes": nodes}}} | changes


def fleet_summary(
    hosts: Sequence[str],
    found: dict[str, Any],
    groups: Mapping[str, Collection[str]],
    well: Sequence[str],
    list_file: str = "",
) -> str:
    common = found[hosts[0]]
    around = Surroundings(common["fleet_state_dir"], common["ansible_inventory_sources"], without_backup(groups, found))
    return screen(host_states(hosts, found.__getitem__, groups, well), around, list_file)


def rows(text: str) -> dict[str, str]:
    return {line.split()[0]: " ".join(line.split()) for line in text.split("\n\n")[0].splitlines()}


def test_each_host_has_a_line_in_the_order_of_the_house() -> None:
    text = fleet_summary(HOSTS, variables(), GROUPS, HOSTS)
    assert list(rows(text)) == ["etcd-1", "api-1", "gpu-1", "gpu-2"]
    assert rows(text)["etcd-1"] == "etcd-1 etcd up"


def test_an_admitted_and_a_held_node_differ() -> None:
    lines = rows(fleet_summary(HOSTS, variables(), GROUPS, HOSTS))
    assert lines["gpu-1"] == "gpu-1 GPU node ready (simulated) PASS"
    assert lines["gpu-2"] == "gpu-2 GPU node held FAIL: XID_FATAL"


def test_a_pass_that_was_not_admitted_is_held_with_the_admitters_reason() -> None:
    refused = {
        "name": "gpu-1",
        "state": "held",
        "verdict": "inconclusive",
        "reasons": [{"code": "EVIDENCE_REPLAYED", "message": "an older one"}],
    }
    text = fleet_summary(HOSTS, variables(localhost={"__node_admission_result": {"nodes": [refused]}}), GROUPS, HOSTS)
    assert rows(text)["gpu-1"] == "gpu-1 GPU node held PASS: EVIDENCE_REPLAYED"
    assert "EVIDENCE_REPLAYED: an older one" in text


def test_a_failed_host_is_not_up() -> None:
    text = fleet_summary(HOSTS, variables(), GROUPS, ["gpu-1", "gpu-2", "api-1"])
    assert rows(text)["etcd-1"] == "etcd-1 etcd FAILED: see the failed task above"


def test_long_reasons_wrap_and_what_stands_behind_a_uuid_is_told() -> None:
    uuid = "GPU-00000000-0000-4000-8000-00000000002b"
    message = f"GPU 1 (0000:43:00.0 {uuid}): 3 uncorrectable errors in DRAM since the driver was loaded"
    found = variables()
    found["gpu-2"]["__gpu_burnin_result"]["reasons"] = [{"code": "ECC_UNCORRECTED", "message": message}]
    text = fleet_summary(HOSTS, found, GROUPS, HOSTS)
    assert (
        "gpu-2 is held. Power the machine off and on, then test it again\n"
        "  ECC_UNCORRECTED: GPU 1 (0000:43:00.0 GPU-00000000): 3 uncorrectable errors in\n"
        "    DRAM since the driver was loaded\n"
    ) in text


def test_many_codes_of_a_host_wrap_below_its_state() -> None:
    found = variables()
    codes = [f"REASON_OF_SOME_LENGTH_{number}" for number in range(4)]
    found["gpu-2"]["__gpu_burnin_result"]["reasons"] = [{"code": code, "message": "x"} for code in codes]
    table = fleet_summary(HOSTS, found, GROUPS, HOSTS).split("\n\n")[0]
    assert all(len(line) <= 80 for line in table.splitlines())
    assert " ".join(table.split()).endswith(f"held FAIL: {', '.join(codes)}")


def test_several_held_nodes_have_one_command_that_shows_them_all() -> None:
    found = variables()
    assert "gpu-burnin report /state/reports " not in fleet_summary(HOSTS, found, GROUPS, HOSTS)
    found["localhost"]["__node_admission_result"]["nodes"] = []
    assert "gpu-burnin report /state/reports    (all" in fleet_summary(HOSTS, found, GROUPS, HOSTS)


def test_next_commands_name_inventory_and_host() -> None:
    text = fleet_summary(HOSTS, variables(), GROUPS, HOSTS)
    assert "gpu-2 is held. Power the machine off and on, then test it again\n" in text
    assert "ansible-playbook -i inventory/prod playbooks/burnin.yml -l gpu-2" in text
    assert "/state/reports/gpu-2/report.json" in text
    assert "report.html" not in text


def test_a_node_that_a_person_must_look_at_is_not_simply_tested_again() -> None:
    found = variables()
    found["gpu-2"]["__gpu_burnin_result"]["order"] = {"sentence": "Keep the node out", "command": ""}
    assert "gpu-2 is held. Keep the node out\n" in fleet_summary(HOSTS, found, GROUPS, HOSTS)
    found["gpu-2"]["__gpu_burnin_result"] |= {"verdict": "PASS", "reasons": []}
    assert "gpu-2 is held\n" in fleet_summary(HOSTS, found, GROUPS, HOSTS)


def test_the_page_of_a_held_node_is_named_where_there_is_one() -> None:
    found = variables()
    found["gpu-1"]["__gpu_burnin_result"]["page"] = "/on/gpu-1/report.html"
    assert "report.html" not in fleet_summary(HOSTS, found, GROUPS, HOSTS)
    found["gpu-2"]["__gpu_burnin_result"]["page"] = "/on/gpu-2/report.html"
    assert "  /state/reports/gpu-2/report.html " in fleet_summary(HOSTS, found, GROUPS, HOSTS)


def test_hosts_with_new_gpus_are_named_with_the_command_unless_they_are_simulated() -> None:
    warning = {"code": "EXTENDED_WANTED", "message": "GPU 0 (serial 1) has not passed an extended burn-in"}
    found = variables()
    assert "extended" not in fleet_summary(HOSTS, found, GROUPS, HOSTS)
    found["gpu-1"]["__gpu_burnin_result"] |= {"burnin_warnings": [warning], "simulated": True}
    assert "extended" not in fleet_summary(HOSTS, found, GROUPS, HOSTS)
    found["gpu-1"]["__gpu_burnin_result"]["simulated"] = False
    text = fleet_summary(HOSTS, found, GROUPS, HOSTS)
    assert "gpu-1 has GPUs that want an extended burn-in once" in text
    assert "playbooks/burnin.yml -l gpu-1 -e gpu_burnin_retest_level=extended" in text
    found["gpu-1"]["__gpu_burnin_result"]["burnin_warnings"] = [{"code": "SLOW", "message": "x"}]
    assert "extended" not in fleet_summary(HOSTS, found, GROUPS, HOSTS)


def test_of_many_hosts_with_new_gpus_a_few_are_named() -> None:
    hosts = [f"gpu-{number:02}" for number in range(12)]
    result = {"verdict": "PASS", "reasons": [], "burnin_warnings": [{"code": "EXTENDED_WANTED", "message": "x"}]}
    common = {"fleet_state_dir": "/state", "ansible_inventory_sources": ["inventory/prod"]}
    found = {host: {**common, "__gpu_burnin_result": result} for host in hosts} | {"localhost": {}}
    text = fleet_summary(hosts, found, {"gpu_nodes": hosts}, hosts)
    assert "gpu-00, gpu-01, gpu-02, gpu-03, gpu-04 and 7 more have GPUs" in text


def test_the_screen_in_the_readme_is_what_the_lab_shows() -> None:
    """Its lines are some of those of the lab's hosts, with what the burn-in says of the sick scenario."""
    groups = read_groups([ROOT / "inventory/lab"])
    hosts = sorted(groups["all"] - {"localhost"})
    gpu = "GPU 1 (0000:43:00.0 GPU-2156d9e0-6196-0fd9-a3fe-3acd21ff2372)"
    reasons = {
        "XID_FATAL": "XID 79 on 0000:43:00.0: GPU has fallen off the bus",
        "ECC_UNCORRECTED": f"{gpu}: 3 uncorrectable errors in DRAM since the driver was loaded",
        "REMAP_PENDING": f"{gpu}: a row remap waits for a GPU reset",
        "RECOVERY_ACTION": f"{gpu}: the driver asks to reset the GPU",
    }
    common = {"fleet_state_dir": "/state", "ansible_inventory_sources": ["inventory/lab"]}
    found: dict[str, Any] = {host: dict(common) for host in hosts}
    ready = [{"name": name, "state": "ready", "simulated": True} for name in ("gpu-1", "gpu-2")]
    found["localhost"] = {"__node_admission_result": {"nodes": ready}}
    for name in ("gpu-1", "gpu-2"):
        found[name]["__gpu_burnin_result"] = {"verdict": "PASS", "reasons": []}
    found["gpu-3"]["__gpu_burnin_result"] = {
        "verdict": "FAIL",
        "order": {"sentence": "Power the machine off and on", "command": "gpu-burnin run"},
        "reasons": [{"code": code, "message": message} for code, message in reasons.items()],
    }
    asked = yaml.safe_load((ROOT / "inventory/lab/group_vars/gpu_nodes.yml").read_text())
    for name in groups["gpu_nodes"]:
        loaded = {"loaded": asked["fleet_nvidia_driver_version"]}
        found[name]["nvidia_driver_found"] = {"held": "", "notes": [], "driver": loaded}
    shown = fleet_summary(hosts, found, groups, hosts).splitlines()
    (sample,) = re.findall(r"It ends with one screen:\n```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    places = [shown.index(line) for line in sample.splitlines() if line]
    assert places == sorted(places)


def test_a_node_whose_burn_in_was_postponed_says_why() -> None:
    why = "no burn-in has been completed on this host, but nothing begins in a maintenance window (calendar: power)"
    changed = variables()
    changed["gpu-2"]["__gpu_burnin_result"] = {"postponed": True, "why": why}
    text = fleet_summary(HOSTS, changed, GROUPS, HOSTS)
    assert rows(text)["gpu-2"] == "gpu-2 GPU node held NO VERDICT"
    assert f"gpu-2 is held not tested: {why}" in " ".join(text.split())


def test_a_gpu_node_shows_the_driver_that_is_loaded() -> None:
    found = variables()
    found["gpu-1"]["nvidia_driver_found"] = {"held": "", "notes": [], "driver": {"loaded": "580.65.06"}}
    found["gpu-2"]["nvidia_driver_found"] = {"held": "", "notes": [], "driver": {"loaded": None}}
    shown = rows(fleet_summary(HOSTS, found, GROUPS, HOSTS))
    assert shown["gpu-1"].endswith(" driver 580.65.06") and "driver" not in shown["gpu-2"]


def test_a_host_without_the_driver_is_held_with_the_reason_and_notes_are_told() -> None:
    found = variables(localhost={})
    found["gpu-2"] = {**found["gpu-2"], "__gpu_burnin_result": {}, "nvidia_driver_found": {"held": "it does not load"}}
    found["gpu-1"]["nvidia_driver_found"] = {"held": "", "notes": [f"note {number}" for number in range(7)]}
    text = fleet_summary(HOSTS, found, GROUPS, HOSTS)
    assert rows(text)["gpu-2"] == "gpu-2 GPU node held no driver as asked"
    assert "gpu-2 is held\n  driver: it does not load\n" in text
    assert "gpu-1: note 0\n" in text and "note 5" not in text and "and 2 more notes of the NVIDIA stack" in text


@pytest.mark.parametrize(
    ("role", "part"), [("fabricmanager", "fabric"), ("dcgm", "DCGM"), ("container_toolkit", "CDI specification")]
)
def test_a_new_host_without_a_part_of_the_stack_is_held_with_the_reason(role: str, part: str) -> None:
    found = variables(localhost={})
    found["gpu-2"] = {**found["gpu-2"], "__gpu_burnin_result": {}, f"nvidia_{role}_found": {"held": "GPU 1 is out"}}
    text = fleet_summary(HOSTS, found, GROUPS, HOSTS)
    assert rows(text)["gpu-2"] == f"gpu-2 GPU node held no {part} as asked"
    assert f"gpu-2 is held\n  {part}: GPU 1 is out\n" in text


def test_what_is_wrong_with_dcgm_of_a_host_that_does_work_is_told_and_does_not_hold_it() -> None:
    found = variables()
    before = rows(fleet_summary(HOSTS, found, GROUPS, HOSTS))["gpu-1"]
    found["gpu-1"]["nvidia_dcgm_found"] = {"held": "", "notes": ["DCGM: it sees one GPU of two"]}
    text = fleet_summary(HOSTS, found, GROUPS, HOSTS)
    assert "gpu-1: DCGM: it sees one GPU of two\n" in text and rows(text)["gpu-1"] == before


def test_a_host_whose_containers_get_no_gpus_is_held_and_a_missing_driver_is_told_first() -> None:
    found = variables(localhost={})
    toolkit = {"held": "containerd 1.6.20 knows no CDI", "devices": ["GPU-1"]}
    found["gpu-2"] = {**found["gpu-2"], "__gpu_burnin_result": {}, "nvidia_container_toolkit_found": toolkit}
    text = fleet_summary(HOSTS, found, GROUPS, HOSTS)
    assert rows(text)["gpu-2"] == "gpu-2 GPU node held no CDI specification as asked"
    assert "gpu-2 is held\n  CDI specification: containerd 1.6.20 knows no CDI\n" in text
    found["gpu-2"]["nvidia_driver_found"] = {"held": "it does not load"}
    assert rows(fleet_summary(HOSTS, found, GROUPS, HOSTS))["gpu-2"] == "gpu-2 GPU node held no driver as asked"


def test_a_node_that_was_left_out_is_named_with_what_to_do_and_is_not_held() -> None:
    fleet = variables()
    fleet["gpu-2"] = {key: fleet["gpu-2"][key] for key in ("fleet_state_dir", "ansible_inventory_sources")}
    fleet["gpu-2"]["__preflight_facts"] = {"unreachable": True, "msg": "No route to host"}
    text = fleet_summary(HOSTS, fleet, GROUPS, [host for host in HOSTS if host != "gpu-2"])
    assert rows(text)["gpu-2"] == "gpu-2 GPU node LEFT OUT: does not answer SSH"
    assert "gpu-2: no answer to SSH, so this run has changed nothing there" in text
    assert "gpu-2 is held" not in text and "report/gpu-2" not in text


def test_a_machine_that_the_scaler_has_switched_off_is_not_missed() -> None:
    fleet = variables()
    fleet["gpu-2"] = {key: fleet["gpu-2"][key] for key in ("fleet_state_dir", "ansible_inventory_sources")}
    fleet["gpu-2"]["__preflight_facts"] = {"unreachable": True, "msg": "No route to host"}
    fleet["localhost"] = {**fleet.get("localhost", {}), "__fleet_first_contact": {"switched_off": ["gpu-2"]}}
    text = fleet_summary(HOSTS, fleet, GROUPS, [host for host in HOSTS if host != "gpu-2"])
    assert rows(text)["gpu-2"] == "gpu-2 GPU node off the scaler has switched it off"
    assert "no answer to SSH" not in text and "gpu-2 is held" not in text


def test_a_fleet_without_snapshots_is_told_so() -> None:
    assert "No snapshots are made of etcd: set etcd_backup_recipients" in fleet_summary(
        HOSTS, variables(), GROUPS, HOSTS
    )
    backed = variables() | {"etcd-1": {**variables()["etcd-1"], "etcd_backup_recipients": ["age1x"]}}
    assert "No snapshots" not in fleet_summary(HOSTS, backed, GROUPS, HOSTS)
