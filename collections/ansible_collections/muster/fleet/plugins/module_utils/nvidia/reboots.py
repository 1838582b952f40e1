"""Why a host was last to be rebooted for its driver, so that a reboot that does not help is not repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.nvidia.decide import Plan

# On the host. It is gone when no reboot is wanted.
KEPT = Path("/var/lib/muster/nvidia-driver-reboot.json")


def judged(plan: Plan, boot_id: str, kept: str) -> Plan:
    """The plan; a reboot that was wanted for the same reason in an earlier boot has not helped, and is a problem now.

    `kept`: what `to_keep` gave when it was wanted, empty for nothing; what cannot be read counts as nothing.
    """
    try:
        before = json.loads(kept) if kept else {}
    except ValueError:
        before = {}
    if not plan.reboot or not isinstance(before, dict) or before.get("why") != plan.reboot:
        return plan
    if before.get("boot_id") == boot_id:
        return plan
    said = (
        f"{plan.reboot}; the host was rebooted since, and it did not help: look at the kernel log for NVRM and "
        f"nouveau; to have it rebooted again remove {KEPT}"
    )
    return replace(plan, reboot="", problems=(*plan.problems, said))


def to_keep(plan: Plan, boot_id: str, kept: str) -> str:
    """What the host should remember after this plan (`judged` already); empty for nothing."""
    if plan.reboot:
        return json.dumps({"boot_id": boot_id, "why": plan.reboot}) + "\n"
    # A host that waits, or is not as asked for another reason, has not been helped either.
    return kept if plan.problems or plan.waits else ""
