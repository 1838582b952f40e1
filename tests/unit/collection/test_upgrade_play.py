"""playbooks/upgrade.yml: its order, what it leaves, and its page; what it asks for: test_operations_ask.py.

Only here: that the playbook removes what lay ready, and gives the lock back, also when it is refused; and the end of a
phase in which a host fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.modules.upgrade_facts import ADMITTER

from gpu_burnin.fleet.roll import lock
from gpu_burnin.fleet.waves.names import FOLDER_VARIABLE, LIMIT, OUTCOMES
from tests.support.fake_api import FakeApi

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PLAYBOOK, PHASE = ROOT / "playbooks/upgrade.yml", "upgrade_phase.yml"
PAGE = (ROOT / "docs/operations/upgrade.md").read_text()


def plays() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(PLAYBOOK.read_text())
    return found


def phases() -> dict[str, dict[str, Any]]:
    """The variables of each phase, in their order."""
    imports = (play["vars"] for play in plays() if play.get("ansible.builtin.import_playbook") == PHASE)
    return {given["upgrade_phase"]: given for given in imports}


def test_what_runs_is_changed_one_host_after_the_other_and_the_first_failure_ends_it() -> None:
    """How that way ends with the first failure: test_one_after_the_other.py."""
    assert list(phases()) == ["etcd", "etcd_events", "servers", "controllers", "nodes"]
    assert [given.get("upgrade_serial", 1) for given in phases().values()][:4] == [1, 1, 1, 1]


def test_admission_that_is_closed_stays_closed_over_a_reboot_and_is_opened_after_the_servers() -> None:
    """What is disabled is what upgrade_facts takes for closed. How it is chosen: test_upgrade_rules.py."""
    order = [str(play.get("hosts") or play["vars"]["upgrade_phase"]) for play in plays()]
    closing, opening = order.index("upgrade_closed"), order.index("upgrade_opened")
    assert closing < order.index("servers") < opening
    (stop,) = plays()[closing]["tasks"]
    assert stop["ansible.builtin.systemd_service"] == {"name": ADMITTER, "state": "stopped", "enabled": False}
    see, run = plays()[opening]["tasks"]
    assert (see["ansible.builtin.import_role"]["tasks_from"], run["ansible.builtin.import_role"]["name"]) == (
        "verify",
        "muster.fleet.admitter",
    )


@pytest.mark.slow
def test_the_first_host_that_fails_is_the_last_and_is_named_with_what_all_run(
    tmp_path: Path, ansible_playbook: Playbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real play of a phase, over three hosts that are this machine; its step fails on the second."""
    (phase,) = yaml.safe_load((ROOT / "playbooks" / PHASE).read_text())
    given = {"upgrade_phase": "nodes", "kube_binaries_names": [], "upgrade_steps": [{"role": "step"}]}
    given["upgrade_most_failed"] = phases()["nodes"]["upgrade_most_failed"]
    phase = phase | {"vars": phase["vars"] | given, "vars_files": [], "roles": []}
    (tmp_path / "play.yml").write_text(json.dumps([phase]).replace("muster.fleet.{{", "{{"))
    look = {"ansible.builtin.set_fact": {"upgrade_found": dict.fromkeys(("sick", "room"), "") | {
        "programs": {"kubelet": {"running": "1.36.1", "wanted": "1.36.3", "current": False}},
        **dict.fromkeys(("served", "leads", "closed"), False),
    }}}  # fmt: skip
    # The host that fails cannot say what it runs either, which is told after the reason and not in its place.
    blind = {"ansible.builtin.fail": {"msg": "nothing answers"}, "when": "ends_with is defined"}
    (tmp_path / "files").mkdir()
    (tmp_path / "files/upgrade_look.yml").write_text(yaml.safe_dump([look, blind]))
    (tmp_path / "roles/step/tasks").mkdir(parents=True)
    trace = f"echo {{{{ inventory_hostname }}}} >> {tmp_path}/trace; {{{{ ends_with | default('true') }}}}"
    step = [{"ansible.builtin.raw": trace, "register": "__end", "failed_when": False}]
    step += [{"ansible.builtin.fail": {"msg": "the file is of another machine"}, "when": "__end.rc != 0"}]
    (tmp_path / "roles/step/tasks/main.yml").write_text(yaml.safe_dump(step))
    hosts: dict[str, Any] = {"gpu-1": {}, "gpu-2": {"ends_with": "false"}, "gpu-3": {}}
    groups = {name: {"hosts": hosts} for name in ("gpu_nodes", "upgrade_nodes")}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": {"upgrade_dir": "x"}, "children": groups}}))
    done = ansible_playbook("play.yml", inventory="hosts.yml")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0, said
    assert (tmp_path / "trace").read_text().split() == ["gpu-1", "gpu-2"], said
    # In a shard of `muster roll` the next batch goes on, unless all of one have failed.
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    in_shard = ansible_playbook("play.yml", "-e", "upgrade_serial=2", inventory="hosts.yml")
    assert "gpu-2 failed: the file is of another machine" in " ".join(in_shard.stdout.split()), in_shard.stdout
    assert sorted((tmp_path / "trace").read_text().split()[2:]) == ["gpu-1", "gpu-2", "gpu-3"], in_shard.stdout
    assert "gpu-2 failed, and nothing was done after it: the file is of another machine" in said, said
    assert "gpu-1: kubelet 1.36.1 (wanted: 1.36.3)" in said and "gpu-3: did not answer" in said
    assert "Mend it and run this again, which goes on from here" in said


def of_a_host(name: str, running: str, wanted: str = "1.36.4") -> dict[str, Any]:
    """What upgrade_facts returns of a healthy host with one program."""
    programs = {name: {"running": running, "wanted": wanted, "current": running == wanted}}
    return {"programs": programs, "sick": "", "served": True, "leads": False, "room": "", "closed": False}


@pytest.mark.slow
@pytest.mark.parametrize("server", ["1.36.4", "1.36.3"])
def test_a_shard_of_a_roll_judges_its_own_nodes_beside_others_and_wants_the_servers_ready(
    tmp_path: Path, ansible_playbook: Playbook, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """The real first and last plays, while another shard has its share of the lock."""
    real = {play["name"]: play for play in plays()}
    kept = [name for name in real if name.startswith(("Check what", "Evaluate the fleet", "Report the"))]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([real[name] for name in kept]))
    (tmp_path / LIMIT).write_text("gpu-1\ngpu-2\n")
    nodes = {"gpu-1": {"upgrade_found": of_a_host("kubelet", "1.36.3")}, "gpu-2": {}, "gpu-9": {}}
    groups = {
        "gpu_nodes": {"hosts": nodes},
        "kube_apiserver": {"hosts": {"api-1": {"upgrade_found": of_a_host("kube-apiserver", server)}}},
    }
    state = tmp_path / "state"
    variables = {"fleet_name": "lab", "fleet_state_dir": str(state), "part": "nodes", "fleet_domain": "a.b"}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    folder = state / "etcd-lock-main"
    other = lock.Lock("anna", "2026-11-22T17:00:00Z", lock.owner(pid=os.getpid()), "upgrades etcd and Kubernetes")
    lock.take(folder, other, shared=True)
    limit = ("--limit", f"localhost,kube_apiserver,@{tmp_path / LIMIT}")
    by_hand = ansible_playbook("play.yml", *limit, inventory=str(path))
    assert "leave out `--limit`" in " ".join(by_hand.stdout.split())
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("ANSIBLE_CALLBACKS_ENABLED", "muster.fleet.roll_results")
    done = ansible_playbook("play.yml", *limit, inventory=str(path))
    said = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode == 0) is (server == "1.36.4"), said
    assert ("api-1: its kube-apiserver is not the pinned build; upgrade the control plane before" in said) is (
        server == "1.36.3"
    ), said
    assert "gpu-9" not in said
    if server == "1.36.4":
        assert "gpu-1: kubelet 1.36.3 -> 1.36.4" in said, said
        hosts = json.loads((tmp_path / OUTCOMES).read_text())["hosts"]
        left = {name: one["left"] for name, one in hosts.items() if "left" in one}
        assert left == {"gpu-2": "it did not answer; run this again with -e part=nodes"}
        assert [lock.read(folder), *folder.glob("shared-*")] == [None, lock._share_of(folder, other.owner)]


@pytest.mark.slow
@pytest.mark.parametrize(("sick", "at_once"), [("no leader", "20"), ("", "20"), ("", "0")])
def test_what_lay_ready_is_removed_also_when_it_is_refused(
    tmp_path: Path, ansible_playbook: Playbook, sick: str, at_once: str
) -> None:
    """The real plays from the judgement on, of a fleet that has nothing to upgrade, or must not."""
    real = {play["name"]: play for play in plays()}
    kept = [
        "Evaluate the fleet and plan what is left to do",
        "Remove the staging folders",
        "Report the running versions",
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([real[name] for name in kept]))
    (tmp_path / "files").symlink_to(ROOT / "playbooks/files")
    runs = {"etcd": {"running": "3.6.16", "wanted": "3.6.16", "current": True}}
    found = {"programs": runs, "sick": sick, "served": True, "leads": False, "room": "", "closed": False}
    groups = {"etcd": {"hosts": {"etcd-1": {"upgrade_found": found}}}}
    variables = {"fleet_name": "lab", "fleet_state_dir": str(tmp_path / "state"), "part": "all", "fleet_domain": "a.b"}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    ready = tmp_path / "ready"
    ready.mkdir()
    (ready / "etcd").write_text("program")
    lock_file = lock.path_of(tmp_path / "state/etcd-lock-main")
    options = ("-e", f"upgrade_dir={ready}", "-e", f"nodes_at_once={at_once}")
    done = ansible_playbook("play.yml", *options, inventory=str(path))
    said = " ".join((done.stdout + done.stderr).split())
    assert not ready.exists() and not lock_file.exists(), said
    assert (done.returncode == 0) is (sick == "" and at_once == "20"), said
    assert ("nodes_at_once is '0'; give a number of nodes, 1 or more" in said) is (at_once == "0")
    assert ("nothing was changed, the upgrade is refused" in said) is (sick != "")
    assert ("etcd-1: its etcd is not healthy: no leader; repair it first" in said) is (sick != "")


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "refused"), [("1.37.0", True), ("1.36.4", False)])
def test_what_native_gangs_have_left_is_counted_before_another_minor(
    tmp_path: Path, ansible_playbook: Playbook, wanted: str, refused: bool
) -> None:
    """The real judgement, of a cluster that has a PodGroup. Its words: test_native_gangs.py."""
    (play,) = (play for play in plays() if play["name"] == "Evaluate the fleet and plan what is left to do")
    (judged,) = (task for task in play["tasks"] if "muster.fleet.kube_upgrade" in task)
    shown = {"ansible.builtin.debug": {"var": "upgrade_planned.refused"}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{**play, "tasks": [judged, shown]}]))
    programs = {
        name: {"running": "1.36.3", "wanted": wanted, "current": False}
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    }
    found = {"programs": programs, "sick": "", "served": True, "leads": False, "room": "", "closed": False}
    groups = {"kube_apiserver": {"hosts": {"api-1": {"upgrade_found": found}}}}
    variables = {"fleet_name": "lab", "fleet_state_dir": str(tmp_path), "part": "all", "fleet_domain": "a.b"}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    api = FakeApi()
    api.objects["podgroups"] = {"train": {"metadata": {"name": "train", "namespace": "vision"}}}
    api.objects["workloads"] = {}
    (tmp_path / "kubeconfig").mkdir()
    api.kubeconfig(tmp_path / "kubeconfig/admin.kubeconfig")
    try:
        done = ansible_playbook("play.yml", inventory=str(path))
    finally:
        api.close()
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, said
    assert ("api-1: the cluster has 1 PodGroup (vision/train) of scheduling.k8s.io/v1alpha2" in said) is refused, said
    assert ("nothing was changed, the upgrade is refused" in said) is refused, said


def test_it_knows_the_programs_of_each_group_as_preflight_does() -> None:
    variables = yaml.safe_load((ROOT / "playbooks/files/upgrade_vars.yml").read_text())
    defaults = yaml.safe_load((ROOT / "roles/preflight/defaults/main.yml").read_text())
    # A node's CoreDNS is site.yml's to bring: names go another way while it restarts.
    of_nodes = {group: defaults["preflight_binaries"].pop(group) for group in ("gpu_nodes", "system_nodes")}
    without = {
        group: text.replace(" + (['coredns'] if fleet_node_dns else [])", "") for group, text in of_nodes.items()
    }
    assert {group: f"{{{{ {variables['upgrade_programs'].pop(group)} }}}}" for group in of_nodes} == without
    assert variables["upgrade_programs"] == defaults["preflight_binaries"]


def test_the_page_names_what_there_is() -> None:
    playbook = PLAYBOOK.read_text().partition("\n- name")[2]
    named = set(re.findall(r"-e (\w+)=", PAGE))
    assert named == {"part", "snapshot", "nodes_at_once"}
    assert all(re.search(rf"\b{name}\b", playbook) for name in named)
    for path in re.findall(r"(?:playbooks|tests/\w+)/\w+\.\w+", PAGE):
        assert (ROOT / path).exists(), path
