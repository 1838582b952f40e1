"""The admission's own reason codes, with what to do; the others are evidence_codes.CODES and the burn-in's reasons."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_burnin.api.remedies import DELETED

CODES: Mapping[str, tuple[str, str]] = {
    "AGENT_BOOT": (
        "The node's agent has not spoken in this boot",
        "Nothing, if the node has just booted; else look at `systemctl status gpu-burnin-watch` on it, or where "
        "attached at its pod of muster-node.",
    ),
    "AGENT_SILENT": (
        "The node's agent is silent (no heartbeat, or nothing that can be read), so nobody watches its GPUs",
        "Look at `systemctl status gpu-burnin-watch` and `journalctl -u gpu-burnin-watch` on the node; "
        "`systemctl enable --now gpu-burnin-watch` starts it, `systemctl restart gpu-burnin-watch` one that hangs. "
        "Where attached look at its pod of muster-node. "
        "Work on the node goes on. It takes new work once the agent is heard, or while a brake holds back its removal, "
        "which `muster why NODE` says.",
    ),
    "AGENT_WARNED": (
        "The node's agent saw something that is no fault yet",
        "Nothing: the node is tested when it is idle. The message says what was seen.",
    ),
    "BOOT_UNDECIDED": (
        "The burn-in of the node's boot was inconclusive, and so were the tests that the admitter asked for since",
        "Look at `gpu-burnin report` on the node and mend what it names, then ask: "
        "muster node retest NODE --reason REASON. The admitter asks no more in this boot.",
    ),
    "DEDICATED": (
        "The idle node was dedicated to a team, whose jobs alone it takes",
        "Nothing: `fleet_teams` asks for it (dedicated: true).",
    ),
    "DRIFTS_FROM_PEERS": (
        "A rate of the node went down over weeks against those of its peers, so somebody asks for a test of it",
        "Test it again. If it stays, compare its reports with gpu-burnin compare, and look at temperatures and "
        "throttling.",
    ),
    "EVIDENCE_LEVEL": (
        "The node passed at a lower level than its NodeAdmission asks for",
        "Nothing, if the agent runs: the admitter asks for the level; else run gpu-burnin run with it on the node.",
    ),
    "EVIDENCE_MISSING": (
        "The node has published no evidence of a burn-in",
        "Look at `systemctl status gpu-burnin-publish` on the node; run gpu-burnin run there if it was never tested. "
        "Where attached it is tested when it is idle; else look at its pod of muster-node.",
    ),
    "FABRIC_ALONE": (
        "No test with another node came about in the time that a node waits for one before it is let in",
        "It takes work where the policy is `alone: admit`, and no new work where it is `hold`, until it has passed "
        "with another node. Look for why there was none: no other idle node, agents that do not answer, or no NICs in "
        "fleet_fabric_nics.",
    ),
    "FABRIC_NODE": (
        "Tests with other nodes failed, and those others are proven: the fault is the node, its NIC, its cable or the "
        "port of its leaf switch",
        "Read the message for what failed. Look at the NIC's counters and the switch port, reseat or replace the "
        "cable, then the NIC. Then muster node retest NODE --reason REASON: it is let in after a pass, and tested with "
        "other nodes again. Then `muster fabric run` with it and some of its leaf tells which rail it is.",
    ),
    "FABRIC_SUSPECT": (
        "A test with another node failed, and which of the two it is was not told apart yet; or the node has not the "
        "address that it is to be tested at",
        "Nothing, where other nodes are idle: it is tested with proven ones, and where there are none, suspects are "
        "tested with each other. Of an address correct what the message names. Where it stays so, look at the NICs and "
        "cables of the nodes in the message; muster node retest NODE --reason REASON then ends the suspicion with a "
        "pass of its own, and it is tested with other nodes anew.",
    ),
    "FABRIC_WAITS": (
        "The node passed its own burn-in and waits for a test with another node, which the fleet asks for before it is "
        "let in",
        "Nothing: it is tested when another node is idle, or at its deadline the policy decides (admitter_fabric).",
    ),
    "GPUS_MISSING": (
        "kubelet does not offer the GPUs, or MIG instances, that the node should have",
        "Look at the device plugin's log on the node, then at `gpu-burnin report`; correct the inventory if the number "
        "there is wrong. Of MIG instances the message says what to do.",
    ),
    "HARDWARE_CHANGED": (
        "GPUs, VBIOS, driver or kernel have changed within a boot since the node was admitted",
        "Nothing, if the change was meant: the node is tested as it is now; else find out who changed it.",
    ),
    "HELD_BY_PERSON": (
        "A person holds the node: no new work, what runs goes on",
        "Read who and why in the message; it ends at its time or when the hold is taken away.",
    ),
    "HOST_KEY_UNKNOWN": (
        "The host key that evidence is verified with is not pinned",
        "Probe the host with muster probe and its fingerprint, then run playbooks/admit.yml; where attached: muster "
        "attach approve NODE.",
    ),
    "LEDGER_RESTORED": (
        "etcd was restored to an older state, so the ledger may have forgotten a fault of the node: no new work",
        "Nothing, if its agent runs and is newer than 0.2.0: the node comes back when the agent has spoken; else look "
        "at `systemctl status gpu-burnin-watch` on it, or where attached at its pod of muster-node, or ask for a test: "
        "muster node retest NODE --reason REASON.",
    ),
    "MAINTENANCE": (
        "A maintenance window of the node is near or open",
        "Nothing: no new pods start until it is over, then the node is tested when it is idle.",
    ),
    "MAINTENANCE_OVER": (
        "The node has been through a maintenance window and was not tested since",
        "Nothing: it works on, and is tested when it is idle.",
    ),
    "NODE_ABSENT": (
        "kubelet has not registered the node",
        "Look at `gpu-burnin gate` and `systemctl status kubelet` on the node: kubelet does not start before a pass. "
        f"Where attached kubelet waits for no pass: look at kubelet itself. {DELETED}.",
    ),
    "NODE_UNKNOWN": (
        "kubelet has stopped reporting, so the node may have booted again",
        "Nothing, if it is booting: it is tested and admitted again; else look at its console.",
    ),
    "NODE_UNREPORTED": (
        "kubelet has registered the node but not reported its status yet",
        "Wait a moment; if it stays, look at kubelet's log on the node.",
    ),
    "NOT_PROVISIONED": (
        "The node is in the cluster but has no NodeAdmission, so nobody says which machine it is",
        "Add it to the inventory and run site.yml, or delete its Node; where attached: muster attach approve NODE.",
    ),
    "POWER_CYCLE_OWED": (
        "A fault of the node asked for a power cycle, or for a repair, and nobody has confirmed it; a PASS after a "
        "reboot is none",
        "Run playbooks/repair.yml, which does a power cycle where the node has a BMC, and else writes a technician's "
        "order; where attached do yourself what the message says. "
        "When the power was off, and for a repair the hardware checked or replaced: muster node retest NODE "
        "--power-cycled --reason REASON. Switched off by admitter_confirm_power_cycle: false.",
    ),
    "QUARANTINED_BY_PERSON": (
        "A person has put the node in quarantine: its work is asked to leave",
        "Read who and why in the message; it ends at its time or when the quarantine is taken away.",
    ),
    "REBOOTED": (
        "The node has booted again since it was admitted",
        "Nothing: its burn-in runs by itself, and it is admitted again after a pass.",
    ),
    "REPAIRED": (
        "The node was in repair and has not been tested since",
        "Nothing: the admitter asks for a test.",
    ),
    "REPAIRING": (
        "The node is in the hands of the repair ladder, or gets another driver",
        "Wait for playbooks/repair.yml or playbooks/driver_upgrade.yml, as the message says, or where attached for who "
        "asked for it; it is tested after it.",
    ),
    "REQUEST_UNANSWERED": (
        "The node was asked for a test and no result came in time",
        "Look at `systemctl status gpu-burnin-watch` and `gpu-burnin status` on the node, or where attached at its pod "
        "of muster-node.",
    ),
    "RETEST_ASKED": (
        "A person has asked for a test",
        "Nothing: the node is tested when it is idle.",
    ),
    "SHARED": (
        "The idle node is no team's any more, and takes the jobs of all",
        "Nothing: its team wants fewer GPUs of its own now, or is gone.",
    ),
    "SLOWER_THAN_PEERS": (
        "A rate of the node is lower than all of its peers can be, so somebody asks for a test of it",
        "Test it again. If it stays, compare it with a node beside it: power limit, temperatures, throttling, link "
        "width; then swap the GPU with another slot's to see which of the two is slow.",
    ),
    "TEST_DUE": (
        "It is the node's turn to be tested",
        "Nothing: it is idle, and back when it has passed.",
    ),
}
