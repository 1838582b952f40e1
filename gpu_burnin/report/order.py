"""The one order that a report comes to: what a person does next, with the command that ends it.

The reasons keep their own actions in the report's data; the order is that of the highest rung, and names the smaller
ones that it includes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_burnin.hardware.reasons import is_note
from gpu_burnin.report.check_findings import common_codes, units_of
from gpu_burnin.report.headline import listed
from gpu_burnin.report.model import Report
from gpu_burnin.settings import expectations
from gpu_burnin.system.entries import mapping_of
from gpu_burnin.types import Action, Reason

RUN = "gpu-burnin run"
# What of a report an order is made from, beside the members that stand before its reasons.
ORDER_PARTS = ("reasons", "warnings", "plan", "gpus", "coverage")
# What an action includes: a machine without power has been restarted, which has reset its GPUs; each ends in a test.
# Who holds a node decides about the rest.
_INCLUDES: Mapping[Action, tuple[Action, ...]] = {
    Action.RESET_GPU: (Action.RETEST,),
    Action.REBOOT: (Action.RETEST, Action.RESET_GPU),
    Action.POWER_CYCLE: (Action.RETEST, Action.RESET_GPU, Action.REBOOT),
    Action.REPAIR: (Action.RETEST, Action.RESET_GPU, Action.REBOOT, Action.POWER_CYCLE),
}
_WORDS: Mapping[Action, str] = {
    Action.NONE: "do what the reasons say",
    Action.RETEST: "do what the reasons say",
    Action.RESET_GPU: "reset {gpus}",
    Action.REBOOT: "reboot the machine",
    Action.POWER_CYCLE: "power the machine off and on",
    Action.REPAIR: "power the machine off and have {hardware} checked or replaced",
    Action.HOLD: "keep the node out until a person has looked at it",
}
# What of a reason the order includes, in words; with what else the reason asks for, it stays to be done.
_INCLUDED: Mapping[Action, str] = {
    Action.RETEST: "new test",
    Action.RESET_GPU: "reset",
    Action.REBOOT: "reboot",
    Action.POWER_CYCLE: "power cycle",
}


@dataclass(frozen=True)
class Order:
    """What to do next. `sentence` has no full stop, `command` ends the order ("" where none does).

    `covered`: the smaller actions that reasons of the report ask for and this order includes, mildest first.
    """

    action: Action
    sentence: str
    command: str = ""
    covered: tuple[Action, ...] = ()

    @property
    def text(self) -> str:
        """The whole in one line: "Power the machine off and on, then `gpu-burnin run`"."""
        return self.sentence + (f", then `{self.command}`" if self.command else "")

    def included(self, actions: Iterable[str]) -> str:
        """What of these actions the order includes, if it includes each: "the reset and the new test"; else ""."""
        asked = {Action(action) for action in actions}
        if not asked or not asked <= {*self.covered}:
            return ""
        return listed([f"the {_INCLUDED[action]}" for action in self.covered if action in asked])


def order_of(report: Report) -> Order:
    """The order of a report, in which what injected faults ask for is not the hardware's."""
    if report.verdict == "PASS":
        codes = {warning.code for warning in report.warnings}
        warned = {code for code in codes if not is_note(code)}
        read = f"Read the {len(warned)} warnings" if len(warned) > 1 else "Read the warning"
        return Order(Action.NONE, f"{read}; nothing else to do" if warned else "Nothing to do")
    if not report.coverage.injected:
        return _order(report, report.reasons, report.action)
    others = [reason for reason in report.reasons if _may_be_injected(report, reason)]
    own = [reason for reason in report.reasons if reason not in others]
    if not own or common_cause(report):
        whole = _order(report, report.reasons, report.action)
        words = f"Run again without --inject. Only if the fault was not injected: {_lower(whole.sentence)}"
        return replace(whole, sentence=words)
    # What was not injected is to be done in any case; what may have been does nothing for its GPUs.
    first = _order(report, own, _highest(own))
    sentence = f"{first.sentence}. Then run again without --inject"
    others = [reason for reason in others if reason.code != "INJECTED"]
    action = max(first.action, report.action, key=lambda action: action.rank)
    if others:
        rest = _order(report, others, _highest(others))
        whose = f"the fault of {gpus}" if (gpus := _gpus(report, others)) else "the other fault"
        sentence += f". Only if {whose} was not injected: {_lower(rest.sentence)}"
    asked = {reason.action for reason in others}
    covered = tuple(smaller for smaller in first.covered if smaller not in asked)
    return Order(action, sentence, first.command, covered)


def order_for(action: Action) -> Order:
    """The order of an action, where no report is at hand."""
    words = _WORDS[action].format(gpus="the GPU", hardware="the hardware")
    return Order(action, _sentence(words), _command(action, ""))


def common_cause(report: Report) -> str | None:
    """Where to look first when all that failed, failed on every GPU: eight GPUs seldom break at once. Else None."""
    failed = {reason.code for reason in report.reasons if reason.severity == "FAIL"}
    if not failed or not failed <= common_codes(report):
        return None
    told = mapping_of(mapping_of(report.plan, "options"), expectations.KEY)
    shared = ("what was expected of them, " if told else "") + "driver and libraries, power, cooling, board, host"
    return f"All {len(report.gpus)} GPUs failed alike, so look first at what they share: {shared}"


def _order(report: Report, reasons: Sequence[Reason], action: Action) -> Order:
    """What reasons come to whose highest rung is `action`."""
    gpus = _gpus(report, [reason for reason in reasons if reason.action == action])
    words = _WORDS[action].format(gpus=gpus or "the GPUs", hardware=gpus or "the hardware")
    if shared := common_cause(report):
        words = f"{shared}. If that is sound: {words}"
    asked = {reason.action for reason in reasons}
    covered = tuple(smaller for smaller in _INCLUDES.get(action, ()) if smaller in asked)
    return Order(action, _sentence(words), _command(action, report.level), covered)


def _highest(reasons: Sequence[Reason]) -> Action:
    return max((reason.action for reason in reasons), key=lambda action: action.rank)


def _may_be_injected(report: Report, reason: Reason) -> bool:
    """Whether an injected fault may have led to a reason: not where its check and its GPU are others."""
    if reason.gpu is None:
        return True
    index = str(own.index) if (own := report.gpu_of.get(reason.gpu)) else None
    for spec in report.coverage.injected:
        check, (_, _, gpu) = spec.split(":")[0], spec.partition(":gpu=")
        if check == reason.check or gpu in ("", index, reason.gpu):
            return True
    return False


def _gpus(report: Report, reasons: Iterable[Reason]) -> str:
    """The GPUs that reasons are about, as people list them; "" where one of them is about the node."""
    found = [unit for reason in reasons for unit in units_of(report, reason)]
    if not found or "node" in found:
        return ""
    units = [gpu.short for gpu in report.gpus if gpu.short in found]
    return f"all {len(units)} GPUs" if len(units) == len(report.gpus) > 2 else listed(units)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _lower(words: str) -> str:
    return words[:1].lower() + words[1:]


def _command(action: Action, level: str) -> str:
    """Tests the node again, as thoroughly as what was found took."""
    if action is Action.HOLD:
        return ""
    return f"{RUN} --level {level}" if level == "extended" else RUN
