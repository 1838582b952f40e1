"""Which condition of a node beats which: the one list of them, the strongest first. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_burnin.admission.decide import between, conditions, fabric
from gpu_burnin.admission.decide.conditions import HARDWARE_CHANGED, suspect_or_new
from gpu_burnin.admission.decide.facts import EVIDENCE_REPLAYED, Facts
from gpu_burnin.admission.decide.finding import (
    AGENT_BOOT,
    AGENT_SILENT,
    Finding,
    Rule,
    VerdictLabel,
    after_restore,
    doubt,
    note,
    requested,
)
from gpu_burnin.admission.decide.maintenance import BEGUN, OVER
from gpu_burnin.admission.decide.offered import GPUS_MISSING
from gpu_burnin.admission.decide.words import brief
from gpu_burnin.api.record import State

_TESTING, _SUSPECT = State.TESTING, State.SUSPECT
_STOPPED = "kubelet has stopped reporting, it may have booted again"
_KEYLESS = (
    "its NodeAdmission names no host key; probe the host and run site.yml, or where attached `muster attach approve` it"
)
_SPEECHLESS = "its agent has said nothing that can be read, so nobody watches its GPUs"
# An agent that was not heard in this boot, by its note and by its heartbeats.
_AGENT_OF_ANOTHER_BOOT = doubt(AGENT_BOOT, _TESTING, conditions.agent_of_another_boot)
_AGENT_UNHEARD = doubt(AGENT_BOOT, conditions.kept_back_or_testing, conditions.unheard)

# Where a node stands is the first of these that holds. What is true of it whatever people ask is the first that nobody
# asks for and that is no note; below that nothing is looked at. A test is for the first of them that one may clear.
ORDER: tuple[Rule, ...] = (
    # A repair is what is done about a fault, so it comes before one.
    requested("repair", State.REPAIRING, "REPAIRING", "in repair"),
    # A fault that may be acted on has the work leave, which no hold, nor the end of a person's quarantine, puts off.
    lambda node: found if (found := conditions.failed(node)) and found.fault else None,
    # What people ask, the stronger first; it also closes a node that nothing is wrong with, so all else is below.
    requested("quarantine", State.QUARANTINED, "QUARANTINED_BY_PERSON", "put in quarantine"),
    requested("hold", State.HELD, "HELD_BY_PERSON", "held"),
    # Nothing more can be seen of a node that is not there.
    doubt("NODE_ABSENT", State.NEW, lambda node: not node.there, "no Node object: kubelet has not registered it"),
    # What was found, by a run or by the agent, says more than who is silent. A fault without leave to act on it stands
    # below what people ask meanwhile, and below the doubt after a restore, which closes a node without leave.
    after_restore(conditions.failed),
    conditions.failed,
    # Other nodes have found it, as a run of its own finds a fault.
    between.named_by_others,
    # Signed by the agent, so before what it has not signed yet.
    doubt(HARDWARE_CHANGED, _SUSPECT, conditions.changed_at_work, test=True),
    conditions.revoking,
    # kubelet, without which nothing below can be told of this boot. An undecided boot is one that it never reports, so
    # that comes first: its test has no answer; or tests have not decided it; or one may yet.
    doubt("REQUEST_UNANSWERED", _SUSPECT, lambda node: node.undecided_boot and node.test.unanswered),
    doubt("BOOT_UNDECIDED", _SUSPECT, conditions.undecided_for_good),
    conditions.undecided,
    # Not reported yet, and not reported any more: the second needs a first report.
    doubt("NODE_UNREPORTED", suspect_or_new, conditions.unreported, "kubelet has not reported the node's status yet"),
    doubt("NODE_UNKNOWN", conditions.suspect_or_testing, lambda node: node.kubelet == "Unknown", _STOPPED),
    # A test at work withdraws the evidence, so before the doubt that there is none; after a restore
    # the request itself may be of the snapshot.
    after_restore(conditions.tested_at_work),
    conditions.tested_at_work,
    # Whose evidence it is. Without a key nothing can be; of a new boot the agent knows before there is any.
    doubt("HOST_KEY_UNKNOWN", conditions.suspect_or_unseen, lambda node: not node.spec.identity.host_key, _KEYLESS),
    doubt("REBOOTED", _TESTING, conditions.rebooted),
    # A sequence that was seen before is what a restored ledger explains; any other refusal is none that it does.
    after_restore(lambda node: conditions.refused(node) if node.evidence.code == EVIDENCE_REPLAYED else None),
    conditions.refused,
    doubt(
        "EVIDENCE_MISSING", suspect_or_new, lambda node: not node.statement, "no evidence of a burn-in was published"
    ),
    # There is evidence, of this boot; an agent has spoken, in this boot; its heartbeats go on, in this boot: each says
    # less than the one before. That an agent was not heard yet, a restore explains better.
    doubt("EVIDENCE_BOOT", _TESTING, conditions.of_another_boot),
    doubt(AGENT_SILENT, suspect_or_new, lambda node: not node.agent_boot, _SPEECHLESS),
    after_restore(_AGENT_OF_ANOTHER_BOOT),
    _AGENT_OF_ANOTHER_BOOT,
    doubt(AGENT_SILENT, _SUSPECT, conditions.silent),
    after_restore(_AGENT_UNHEARD),
    _AGENT_UNHEARD,
    # What the evidence says. Of the time before a repair it says nothing.
    doubt("REPAIRED", _TESTING, lambda node: node.before_repair, "not tested since it was in repair", test=True),
    # A test without an answer may have found what this evidence has not.
    doubt("REQUEST_UNANSWERED", _SUSPECT, lambda node: node.test.unanswered),
    # No pass, then one that cannot be: what is left is a pass.
    conditions.inconclusive,
    conditions.unacceptable,
    # Of this hardware? Does it clear what is known of the node? Are its GPUs there, as only a good node is asked?
    doubt(HARDWARE_CHANGED, _SUSPECT, conditions.changed, test=True),
    doubt("POWER_CYCLE_OWED", _SUSPECT, conditions.owes_power_cycle),
    conditions.lacks_gpus,
    doubt(between.FABRIC_SUSPECT, _SUSPECT, between.suspected_by_others),
    # A restored ledger may have forgotten any doubt: so it beats all that speaks for the node, and no doubt above.
    after_restore(conditions.old_proof, conditions.passed),
    # Old proof keeps a closed node closed. One at work goes on, so the same stands below what is told of it first.
    lambda node: conditions.old_proof(node) if node.gated else None,
    # All of its own is well: what is asked for yet is a test with another node.
    fabric.waits_for_partner,
    # What keeps, or will keep, new work away.
    note(GPUS_MISSING, lambda node: node.missing_gpus),
    note(BEGUN, lambda node: node.windows.why),
    # It is told as long as no other node has shown that it is well.
    note(fabric.FABRIC_ALONE, fabric.let_in_alone),
    # What it is tested for: old proof will close it, a warning is of something seen, maintenance may be nothing.
    conditions.old_proof,
    note("AGENT_WARNED", conditions.warned, test=True),
    note(OVER, conditions.maintained, test=True, by_schedule=True),
    conditions.passed,
)


@dataclass(frozen=True)
class Judged:
    """Where a node stands (`shown`), what is true of it whatever people ask (`own`), and what a test is for."""

    shown: Finding
    own: Finding
    wanted: Finding | None


def judge(facts: Facts) -> Judged:
    """The first of the order, down to the first that is neither asked for nor a note."""
    found: list[Finding] = []
    for rule in ORDER:
        if (one := rule(facts)) is not None:
            found.append(one)
            if not (one.who or one.note):
                break
    shown, own = found[0], found[-1]
    if shown.who:
        # A fault for which there is no leave stands in the message of what a person asks meanwhile.
        unheeded = own.verdict is VerdictLabel.FAIL and shown.state is not State.REPAIRING
        words = f"{brief(own.message)}; {shown.message}" if unheeded else f"{facts.view.name}: {shown.message}"
        shown = replace(shown, message=words)
    return Judged(shown, own, next((one for one in found if one.retest), None))
