"""What a test between nodes leaves of its members in the ledger: passed, suspect, or named. Pure.

The rules are those of fabric/standing.py: a failure with proven partners alone counts against its suspect, and a
proven partner is never blamed. A failure without one makes suspects of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.fabric.claim import Cause, Claim, Part, link
from gpu_burnin.fabric.model import ALL, Found, Judged, Kind, Settings, Standing
from gpu_burnin.fabric.standing import cleared, named, proven
from gpu_burnin.system.prose import listed

SETTINGS = Settings()
# The newest partners that a record keeps.
_MOST_PARTNERS = 8
_MOST_CHARS = 300


def is_suspect(proof: FabricProof | None) -> bool:
    """Whether a test of this boot failed that nothing explains yet."""
    return proof is not None and proof.outcome is FabricOutcome.SUSPECT


def is_proven(proof: FabricProof | None) -> bool:
    """Whether the node may be the partner of a suspect."""
    return (
        proof is not None and proof.outcome is FabricOutcome.PASSED and proven(Standing(passes=proof.passes), SETTINGS)
    )


def after(
    judged: Judged,
    before: Mapping[str, FabricProof | None],
    boots: Mapping[str, str],
    run: str,
    now: str,
    rails: Mapping[str, tuple[int, ...]],
) -> dict[str, FabricProof]:
    """The proofs of those members of whom the test has shown something. `before` are those of the same boots."""
    members = judged.test.members
    sure = [name for name in members if is_proven(before.get(name))]
    unsure = [name for name in members if name not in sure]
    found: dict[str, FabricProof] = {}
    if judged.found is Found.SPOILED or judged.test.kind is not Kind.PAIR:
        # In a group one bad node hides the others: pairs find nodes.
        return found
    for name in members:
        others = tuple(other for other in members if other != name)
        old = before.get(name) or FabricProof(boots[name], now, FabricOutcome.PASSED, run)
        seen = replace(old, tested_at=now, run=run, partners=_with(old.partners, others))
        with_proven = all(other in sure for other in others)
        if judged.found is Found.PASS:
            found[name] = _passed(seen, with_proven=with_proven)
        elif name in sure and unsure:
            continue
        elif with_proven and unsure == [name]:
            found[name] = _failed(seen, name, judged.found, others, rails.get(name, ()))
        else:
            claim = Claim(
                judged.found, tuple(Cause(Part.NODE, one) for one in sorted(members)), (), members, sure=False
            )
            passes = 0 if not is_suspect(seen) else seen.passes
            found[name] = replace(
                seen, outcome=FabricOutcome.SUSPECT, passes=passes, claim=claim.sentence[:_MOST_CHARS]
            )
    return found


def _passed(proof: FabricProof, *, with_proven: bool) -> FabricProof:
    if proof.outcome is FabricOutcome.NAMED:
        return proof
    if not is_suspect(proof):
        return replace(proof, passes=proof.passes + 1)
    if not with_proven:
        return proof
    counted = replace(proof, passes=proof.passes + 1)
    if not cleared(_probed(counted), SETTINGS):
        return counted
    # It failed, and then passed with proven partners: chance, or a fault that comes and goes.
    return replace(counted, outcome=FabricOutcome.PASSED, failures=0, claim="")


def _failed(proof: FabricProof, name: str, what: Found, others: tuple[str, ...], rails: tuple[int, ...]) -> FabricProof:
    passes = proof.passes if is_suspect(proof) else 0
    counted = replace(proof, outcome=FabricOutcome.SUSPECT, passes=passes, failures=proof.failures + 1)
    is_named = bool(named(_probed(counted), SETTINGS))
    causes = (Cause(Part.NODE, name), *(link(name, rails[0], None) if len(rails) == 1 else ()))
    claim = Claim(what, causes, (), (name,), sure=True)
    words = (
        f"{claim.sentence}; failed {counted.failures} of {counted.failures + passes} tests with proven partners, the "
        f"last with {listed(list(others), 3)}"
    )
    outcome = FabricOutcome.NAMED if is_named else FabricOutcome.SUSPECT
    return replace(counted, outcome=outcome, claim=words[:_MOST_CHARS])


def _probed(proof: FabricProof) -> Standing:
    return Standing(failures=proof.failures, probes={ALL: (proof.passes, proof.failures)})


def _with(known: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """The partners, oldest first, each once."""
    return (*(one for one in known if one not in others), *others)[-_MOST_PARTNERS:]
