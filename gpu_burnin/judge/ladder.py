"""The action ladder: what to do next with a node. The one place that weighs actions against each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_burnin.types import Action, Reason, Verdict

# What has been done without success once the machine was restarted, and what comes then. A retest that did not
# help needs a person; what a restart did not clear needs the power off, and what that did not clear a repair.
AFTER_RESTART: dict[Action, Action] = {
    Action.RETEST: Action.HOLD,
    Action.RESET_GPU: Action.POWER_CYCLE,
    Action.REBOOT: Action.POWER_CYCLE,
    Action.POWER_CYCLE: Action.REPAIR,
}
# Actions that the driver's own demand (XID 154, NVML field 230) may take the place of: it knows what clears the
# state it is in, but nothing of power supplies, spare parts and people.
DRIVER_DECIDES = frozenset({Action.NONE, Action.RETEST, Action.RESET_GPU, Action.REBOOT})

# A doubt that comes back is the hardware's; other doubts (a busy GPU, a missing log) say nothing of it.
DOUBTS_OF_HARDWARE = frozenset({"XID_SUSPECT"})


def worst_action(reasons: Iterable[Reason]) -> Action:
    """The highest rung that any reason asks for; NONE without reasons."""
    return max((reason.action for reason in reasons), key=lambda action: action.rank, default=Action.NONE)


def driver_decides(own: Action, demand: Action | None) -> Action:
    """The action for a fault where the driver has said what it needs. `demand` None: it has said nothing."""
    return demand if demand is not None and own in DRIVER_DECIDES else own


def escalated(reason: Reason, last: Iterable[Reason], restarted: bool) -> Reason:
    """The reason with its action a rung up where the same fault is back although the machine was restarted.

    `last` are the reasons of the run before. Without a restart nothing is known to have been done, and the action
    stays. Fault and GPU are compared by code and UUID.
    """
    if not restarted or not (reason.severity is Verdict.FAIL or reason.code in DOUBTS_OF_HARDWARE):
        return reason
    known = [old for old in last if (old.code, old.gpu) == (reason.code, reason.gpu)]
    if not known:
        return reason
    tried = worst_action((*known, reason))
    action = AFTER_RESTART.get(tried, tried)
    note = f"{reason.message} (again, after a restart of the machine)"
    return reason if action is reason.action else replace(reason, action=action, message=note)
