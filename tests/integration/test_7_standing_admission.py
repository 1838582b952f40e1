"""The fleet by itself, nobody watching: reboots, an XID, a swapped GPU, tests at random, maintenance, a lost leader.

Pods get their GPUs from kubelet, which has them from the lab's device plugin: a node that comes back has to offer them
again before it takes work.

Only here: agent, admitter, kubelet and device plugin together, on hosts that boot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from gpu_burnin.api.names import READY_LABEL
from gpu_burnin.system.clock import rfc3339
from tests.lab import hosts

from .fleet import API_SERVERS, XID_79, Fleet, wait_until
from .lab_nodes import admission, back, back_in_this_boot, create, is_in, is_open, job, now, phase, state, transitions

HOLD = "muster.dev/hold-until"
CONFIG = "/etc/muster/admitter.yaml"
WATCH_UNIT = "/etc/systemd/system/gpu-burnin-watch.service"


def later(seconds: float) -> str:
    return rfc3339(datetime.now(UTC) + timedelta(seconds=seconds))


def leader(fleet: Fleet) -> str:
    lease = fleet.get("lease", "muster-admitter", "--namespace=muster-system")
    # The host's name, and a number of the process.
    return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]


@contextmanager
def configured(fleet: Fleet, **changes: Any) -> Iterator[None]:
    """The admitters with other settings, as site.yml would write them."""
    before = {host: fleet.must(host, f"cat {CONFIG}") for host in API_SERVERS}
    try:
        for host, text in before.items():
            write_config(fleet, host, yaml.safe_dump({**yaml.safe_load(text), **changes}))
        yield
    finally:
        for host, text in before.items():
            write_config(fleet, host, text)


def write_config(fleet: Fleet, host: str, text: str) -> None:
    done = fleet.ssh(host, f"cat > {CONFIG} && muster admitter --check --config {CONFIG}", stdin=text)
    assert done.rc == 0, done.err
    fleet.must(host, "systemctl restart muster-admitter")


@pytest.fixture(scope="module", autouse=True)
def gpus(fleet: Fleet) -> None:
    """Both healthy nodes take work."""
    for node in ("gpu-1", "gpu-2"):
        back(fleet, node)


def test_the_ledger_is_a_table_that_people_can_read(fleet: Fleet) -> None:
    table = fleet.kubectl("get", "nodeadmissions").out
    lines = {line.split()[0]: line for line in table.splitlines()[1:]}
    assert set(lines) == {"gpu-1", "gpu-2", "gpu-3"}
    assert "ready" in lines["gpu-1"] and "ready" in lines["gpu-2"] and "ready" not in lines["gpu-3"]
    told = fleet.muster("status")
    assert told.rc == 0 and "gpu-3" in told.out and "2 ready" in told.out, told.out + told.err
    ages = json.loads(fleet.muster("coverage", "--json").out)
    assert {node["name"] for node in ages["nodes"] if node["age_s"]["quick"] is not None} >= {"gpu-1", "gpu-2"}


@pytest.mark.soak
def test_a_node_that_reboots_is_back_by_itself(fleet: Fleet) -> None:
    """As the one whose GPU is swapped meanwhile."""
    begun = now()
    hosts.reboot(fleet.lab, "gpu-1")
    back_in_this_boot(fleet, "gpu-1", begun)


def test_an_xid_takes_a_working_node_out_and_its_job_keeps_its_hold(fleet: Fleet) -> None:
    begun = now()
    with job(fleet, "holding", "gpu-2", {HOLD: later(3600)}):
        started = time.monotonic()
        fleet.must("gpu-2", XID_79)
        wait_until(
            "the label to go and the taints to come",
            lambda: (
                READY_LABEL not in fleet.get("node", "gpu-2")["metadata"]["labels"]
                and "muster.dev/quarantine:NoSchedule" in fleet.node_taints("gpu-2")
            ),
            timeout_s=60,
        )
        print(f"XID 79 to label gone and tainted: {time.monotonic() - started:.1f} s (goal 5 s)")
        assert fleet.ssh("gpu-2", "gpu-burnin gate").rc == 1
        status = admission(fleet, "gpu-2")["status"]
        assert (status["state"], status["code"]) == ("quarantined", "XID_FATAL"), status
        # The job was told, and goes on.
        assert phase(fleet, "holding") == "Running"
        told = wait_until(
            "the job's node to be told that its work should leave",
            lambda: fleet.ssh("gpu-2", "cat /run/muster/leave.json").out,
            timeout_s=30,
        )
        assert "XID" in str(told), told
        # All of that, and the looks that the admitter has taken meanwhile, did not end it. Now its hold ends soon.
        end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10)
        shorter = fleet.kubectl("annotate", "pod", "holding", "--overwrite", f"{HOLD}={rfc3339(end)}")
        assert shorter.rc == 0, shorter.err
        wait_until("the eviction after the hold", lambda: phase(fleet, "holding") == "gone", timeout_s=120)
        assert datetime.now(UTC) > end, "it was evicted before the end of its hold"
    assert "XID_FATAL" in {change["code"] for change in transitions(fleet, "gpu-2", begun)}
    why = fleet.muster("why", "gpu-2")
    assert why.rc in (0, 1) and "79" in why.out, why.out + why.err


@pytest.mark.soak
def test_a_brake_holds_back_nothing_that_a_person_asks(fleet: Fleet) -> None:
    """Of three nodes one may be out: XID 79 takes gpu-2 out, and the same on gpu-1 is a person's to decide."""
    with job(fleet, "under-brake", "gpu-1"):
        fleet.must("gpu-2", XID_79)
        wait_until("gpu-2 to be out", lambda: state(fleet, "gpu-2") == "quarantined", timeout_s=60)
        fleet.must("gpu-1", XID_79)
        wait_until(
            "the brake to be told",
            lambda: "share" in admission(fleet, "gpu-1")["status"]["next"]["why"],
            timeout_s=60,
        )
        assert is_open(fleet, "gpu-1") and "BRAKE: gpu-1" in " ".join(fleet.muster("status").out.split())
        held = fleet.muster("node", "hold", "gpu-1", "--reason", "looks at it")
        assert held.rc == 0 and "done after" in held.out, held.out + held.err
        assert not is_open(fleet, "gpu-1") and phase(fleet, "under-brake") == "Running"
        why = " ".join(fleet.muster("why", "gpu-1").out.split())
        places = [why.index(text) for text in ("79", "held by", "share of nodes")]
        assert places == sorted(places), why
        out = fleet.muster("node", "quarantine", "gpu-1", "--reason", "swap it")
        assert out.rc == 0 and "muster.dev/quarantine:NoSchedule" in fleet.node_taints("gpu-1"), out.out + out.err
        wait_until("its work to leave", lambda: phase(fleet, "under-brake") == "gone", timeout_s=60)
    fleet.muster("node", "release", "gpu-1", "--reason", "seen")
    for node in ("gpu-1", "gpu-2"):
        begun = now()
        hosts.reboot(fleet.lab, node)
        back_in_this_boot(fleet, node, begun)


@pytest.mark.soak
def test_a_reboot_and_a_pass_are_no_power_cycle_until_a_person_says_so(fleet: Fleet) -> None:
    """The agent's signed word says what XID 79 asks for; the lab's hosts have no BMC."""
    with configured(fleet, confirm_power_cycle=True):
        fleet.must("gpu-2", XID_79)
        wait_until("gpu-2 to be out", lambda: state(fleet, "gpu-2") == "quarantined", timeout_s=60)
        begun = now()
        hosts.reboot(fleet.lab, "gpu-2")
        code = "POWER_CYCLE_OWED"
        wait_until(
            "its PASS to be no power cycle", lambda: admission(fleet, "gpu-2")["status"]["code"] == code, timeout_s=360
        )
        assert not is_open(fleet, "gpu-2")
        command = "muster node retest gpu-2 --power-cycled --reason REASON"
        assert command in admission(fleet, "gpu-2")["status"]["message"]
        done = fleet.muster("node", "retest", "gpu-2", "--power-cycled", "--reason", "it was off for a minute")
        assert done.rc in (0, 3), done.out + done.err
        back_in_this_boot(fleet, "gpu-2", begun)


def test_a_node_that_reboots_is_back_by_itself_and_a_gpu_that_was_swapped_meanwhile_is_named(fleet: Fleet) -> None:
    before = json.dumps(admission(fleet, "gpu-2")["status"]["accepted"]["hardware"])
    begun = now()
    hosts.install_scenario(fleet.lab, "gpu-2", "swapped-2gpu")
    hosts.reboot(fleet.lab, "gpu-2")
    back_in_this_boot(fleet, "gpu-2", begun)
    after = json.loads(fleet.must("gpu-2", "cat /var/lib/gpu-burnin/latest/report.json"))
    (new,) = [gpu["uuid"] for gpu in after["gpus"] if gpu["uuid"] not in before]
    words = json.dumps(transitions(fleet, "gpu-2", begun))
    assert new[:12] in words, f"{new} is not named in {words}"


def is_unwatched(fleet: Fleet, node: str) -> bool:
    status = admission(fleet, node)["status"]
    return (status["state"], status["code"]) == ("suspect", "AGENT_SILENT")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("ended", "begun_again"),
    [
        pytest.param(
            "systemctl kill --signal=STOP gpu-burnin-watch",
            "systemctl kill --signal=CONT gpu-burnin-watch",
            id="frozen",
        ),
        # systemd masks no unit whose file is in /etc: who wants it takes the file away first.
        pytest.param(
            f"systemctl stop gpu-burnin-watch && mv {WATCH_UNIT} /var/tmp/ && systemctl mask gpu-burnin-watch",
            f"systemctl unmask gpu-burnin-watch && mv /var/tmp/gpu-burnin-watch.service {WATCH_UNIT} && "
            "systemctl daemon-reload && systemctl start gpu-burnin-watch",
            id="masked",
        ),
    ],
)
def test_an_agent_that_ends_keeps_new_work_away_and_leaves_the_job(fleet: Fleet, ended: str, begun_again: str) -> None:
    """For make test the silence of a disabled one, below, is enough: the lab idles for minutes meanwhile."""
    with job(fleet, "unwatched", "gpu-1"):
        fleet.must("gpu-1", ended)
        started = time.monotonic()
        try:
            wait_until("the agent to be missed", lambda: is_unwatched(fleet, "gpu-1"), timeout_s=300)
            print(f"{ended} to suspect: {time.monotonic() - started:.0f} s (150 are set)")
            assert not is_open(fleet, "gpu-1") and phase(fleet, "unwatched") == "Running"
            for told in (fleet.muster("status"), fleet.muster("why", "gpu-1")):
                assert "AGENT_SILENT" in told.out, told.out + told.err
        finally:
            fleet.must("gpu-1", begun_again)
        back(fleet, "gpu-1")
        assert phase(fleet, "unwatched") == "Running"


@pytest.mark.soak
def test_a_killed_agent_is_another_process_at_once_and_no_silence(fleet: Fleet) -> None:
    """Restart= of its unit; a heartbeat is bound to the process that sent it."""

    def process() -> str:
        """When the process began that sent the newest heartbeat."""
        return str(fleet.get("agentheartbeats", "gpu-1")["spec"]["startedAt"])

    first, begun = process(), now()
    fleet.must("gpu-1", "systemctl kill --signal=KILL gpu-burnin-watch")
    wait_until("a heartbeat of another process", lambda: process() != first, timeout_s=120)
    assert is_in(fleet, "gpu-1") and transitions(fleet, "gpu-1", begun) == []


def test_a_pass_after_a_reboot_lets_no_node_in_whose_agent_is_disabled(fleet: Fleet) -> None:
    """The gate towards the cluster writes the note of the boot in the agent's place: it was admitted by that."""
    begun = now()
    fleet.must("gpu-1", "systemctl disable --now gpu-burnin-watch")
    try:
        hosts.reboot(fleet.lab, "gpu-1")
        boot = fleet.must("gpu-1", "cat /proc/sys/kernel/random/boot_id").strip()
        wait_until("the boot's own pass", lambda: fleet.ssh("gpu-1", "gpu-burnin gate").rc == 0, timeout_s=240)
        wait_until(
            "kubelet's word of the new boot, and the agent to be missed",
            lambda: fleet.get("node", "gpu-1")["status"]["nodeInfo"]["bootID"] == boot and is_unwatched(fleet, "gpu-1"),
            timeout_s=360,
        )
        assert not is_open(fleet, "gpu-1")
        assert "ready" not in {change["to"] for change in transitions(fleet, "gpu-1", begun)}
    finally:
        fleet.must("gpu-1", "systemctl enable --now gpu-burnin-watch")
    back_in_this_boot(fleet, "gpu-1", begun)


def test_an_idle_node_is_tested_and_a_busy_one_is_not(fleet: Fleet) -> None:
    sequences = {node: admission(fleet, node)["status"]["highestSequence"] for node in ("gpu-1", "gpu-2")}
    tests = {"nodes": 2, "share": 1, "random_share": 0, "quick_every_s": 1, "standard_every_s": 0}
    with job(fleet, "busy", "gpu-1"), configured(fleet, tests={**tests, "extended_every_s": 0, "ask_again_s": 5}):
        wait_until(
            "gpu-2, which is idle, to be tested again",
            lambda: admission(fleet, "gpu-2")["status"]["highestSequence"] > sequences["gpu-2"],
            timeout_s=240,
        )
        assert admission(fleet, "gpu-1")["status"]["highestSequence"] == sequences["gpu-1"]
        assert phase(fleet, "busy") == "Running" and is_in(fleet, "gpu-1")
    back(fleet, "gpu-2")


def test_a_maintenance_window_keeps_new_work_away_until_its_end(fleet: Fleet) -> None:
    window = {"nodes": ["gpu-1"], "not_before": later(-5), "not_after": later(60), "message": "new power supply"}
    taint = "muster.dev/maintenance:NoSchedule"
    with configured(fleet, calendar=[window]):
        wait_until("the window's taint", lambda: taint in fleet.node_taints("gpu-1"), timeout_s=30)
        assert create(fleet, "waits", "gpu-1").rc == 0
        try:
            wait_until(
                "the scheduler to refuse the node",
                lambda: "untolerated taint" in fleet.kubectl("get", "pod", "waits", "-o", "json").out,
                timeout_s=30,
            )
            assert taint not in fleet.node_taints("gpu-2")
            wait_until("the window's end", lambda: taint not in fleet.node_taints("gpu-1"), timeout_s=120)
        finally:
            fleet.kubectl("delete", "pod", "waits", "--now")
        back(fleet, "gpu-1")


def test_a_killed_leader_is_followed_by_another(fleet: Fleet) -> None:
    first = str(wait_until("a leader", lambda: leader(fleet), timeout_s=30))
    boot = fleet.get("nodeadmission", "gpu-1")["status"]["accepted"]["bootID"]
    started = time.monotonic()
    fleet.must(first, "systemctl kill --signal=KILL muster-admitter && systemctl stop muster-admitter")
    try:
        wait_until("another leader", lambda: leader(fleet) not in ("", first), timeout_s=60)
        print(f"takeover after kill -9 of the leader: {time.monotonic() - started:.1f} s (goal 15 s)")
        assert is_in(fleet, "gpu-1")
        asked = fleet.muster("node", "hold", "gpu-1", "--reason", "to see that the new leader works")
        assert asked.rc == 0, asked.err
        wait_until("the hold to be kept", lambda: state(fleet, "gpu-1") == "held", timeout_s=30)
    finally:
        fleet.must(first, "systemctl start muster-admitter")
        fleet.muster("node", "release", "gpu-1", "--reason", "seen")
    back(fleet, "gpu-1")
    assert admission(fleet, "gpu-1")["status"]["accepted"]["bootID"] == boot
