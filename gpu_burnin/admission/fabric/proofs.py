"""What a test between nodes leaves of its members in the ledger: passed, suspect, or named. Pure.

The rules are those of fabric/standing.py: a failure with proven partners alone counts against its suspect, and a
proven partner is never blamed for one. A failure without one makes suspects of all. No node is named by one partner
alone, and a partner with which others fail, and with nobody else, is proven no more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.rendezvous import FabricTest
from gpu_burnin.fabric.claim import Cause, Claim, Part, link
from gpu_burnin.fabric.model import Found, Judged, Kind, Purpose, Result, Settings, Standing, Test
from gpu_burnin.fabric.standing import proven
from gpu_burnin.fabric.verdict import verdict_of
from gpu_burnin.system.prose import listed

SETTINGS = Settings()
# So many different partners have to have failed with a node before it is named: one of them may be the bad one.
LEAST_PARTNERS = 2
# The newest partners that a record keeps.
_MOST_PARTNERS = 8
_MOST_CHARS = 300


def is_suspect(proof: FabricProof | None) -> bool:
    """Whether a test of this boot failed that nothing explains yet."""
    return proof is not None and proof.outcome is FabricOutcome.SUSPECT


def is_named(proof: FabricProof | None) -> bool:
    """Whether it failed with proven partners often enough."""
    return proof is not None and proof.outcome is FabricOutcome.NAMED


def is_proven(proof: FabricProof | None) -> bool:
    """Whether the node may be the partner of a suspect."""
    return (
        proof is not None and proof.outcome is FabricOutcome.PASSED and proven(Standing(passes=proof.passes), SETTINGS)
    )


def judged(
    test: FabricTest, result: Result, before: Mapping[str, FabricProof | None]
) -> tuple[Judged, tuple[str, ...]]:
    """What it came to, and who of those that began it gave no view. Where one is not proven, it is of that one."""
    unsure = [name for name in test.names if not is_proven(before[name])]
    suspect = unsure[0] if len(unsure) == 1 and test.kind is Kind.PAIR else ""
    purpose = Purpose.LEAF if test.kind is not Kind.PAIR else Purpose.PROBE if suspect else Purpose.PAIRS
    found, _ = verdict_of(Test(test.test, test.kind, purpose, test.names, test.names, suspect), result)
    views = {one.view.member for one in result.views}
    return found, tuple(name for name in test.names if views and name not in views)


def after(
    judged: Judged,
    before: Mapping[str, FabricProof | None],
    boots: Mapping[str, str],
    run: str,
    now: str,
    rails: Mapping[str, tuple[int, ...]],
    silent: Collection[str] = (),
) -> dict[str, FabricProof]:
    """The proofs of those members of whom the test has shown something. `before` are those of the same boots.

    What a leader before this one has written of this test (`run`) is left as it is. `silent` gave no view: silence
    counts against nobody else.
    """
    found, members = judged.found, judged.test.members
    if found is Found.SPOILED or judged.test.kind is not Kind.PAIR:
        # In a group one bad node hides the others: pairs find nodes.
        return {}
    sure = [name for name in members if is_proven(before.get(name))]
    unsure = [name for name in members if name not in sure]
    blamed = [name for name in members if found is not Found.SILENT or name in silent or not silent]
    doubt = _doubt(found, blamed)
    # A leader before this one has made a suspect of one of them so: then of the others too, whatever it is by now.
    doubted = any(one is not None and one.run == run and one.claim == doubt for one in before.values())
    shown: dict[str, FabricProof] = {}
    for name in members:
        old = before.get(name) or FabricProof(boots[name], now, FabricOutcome.PASSED, "")
        if is_named(old) or old.run == run:
            continue
        others = tuple(other for other in members if other != name)
        seen = replace(old, tested_at=now, run=run, partners=_with(old.partners, others))
        with_proven = all(other in sure for other in others)
        if found is Found.PASS:
            among = all(is_suspect(before.get(other)) for other in others)
            shown[name] = _passed(seen, with_proven=with_proven, among_suspects=among)
        elif name not in blamed:
            continue
        elif with_proven and unsure == [name] and not doubted:
            shown[name] = _failed(seen, name, found, others, rails.get(name, ()))
        elif name in sure and unsure and not doubted:
            if (partner := _failed_as_partner(seen, name, found, unsure[0], before.get(unsure[0]))) is not None:
                shown[name] = partner
        else:
            shown[name] = _suspect(seen, doubt)
    return shown


def with_fault(proof: FabricProof | None, boot: str, run: str, now: str, why: str) -> FabricProof:
    """The proof of a node that says itself why no test with it can come about: it is a suspect."""
    old = proof or FabricProof(boot, now, FabricOutcome.PASSED, run)
    return old if is_named(old) else _suspect(replace(old, tested_at=now, run=run), why[:_MOST_CHARS])


def _suspect(proof: FabricProof, claim: str) -> FabricProof:
    if is_suspect(proof):
        return replace(proof, claim=claim)
    return replace(proof, outcome=FabricOutcome.SUSPECT, passes=0, failures=0, failed_with=(), claim=claim)


def _passed(proof: FabricProof, *, with_proven: bool, among_suspects: bool) -> FabricProof:
    if not is_suspect(proof):
        return replace(proof, passes=proof.passes + 1, failed_with=())
    free = replace(proof, outcome=FabricOutcome.PASSED, failures=0, failed_with=(), claim="")
    if with_proven:
        # It failed, and then passed with proven partners: chance, or a fault that comes and goes.
        passes = proof.passes + 1
        return replace(free if passes >= SETTINGS.enough else proof, passes=passes)
    # Where all are suspects, as after a firewall was closed, those that nothing proven speaks against begin anew.
    return replace(free, passes=1) if among_suspects and not proof.failures else proof


def _failed(proof: FabricProof, name: str, what: Found, others: tuple[str, ...], rails: tuple[int, ...]) -> FabricProof:
    known, passes = (proof.failed_with, proof.passes) if is_suspect(proof) else ((), 0)
    failures, failed_with = proof.failures + 1, _with(known, others)
    causes = (Cause(Part.NODE, name), *(link(name, rails[0], None) if len(rails) == 1 else ()))
    claim = Claim(what, causes, (), (name,), sure=True)
    words = (
        f"{claim.sentence}; failed {failures} of {failures + passes} tests with proven partners, the last with "
        f"{listed(list(others), 3)}"
    )
    enough = failures >= SETTINGS.enough and len(failed_with) >= LEAST_PARTNERS
    outcome = FabricOutcome.NAMED if enough else FabricOutcome.SUSPECT
    return replace(
        proof, outcome=outcome, passes=passes, failures=failures, failed_with=failed_with, claim=words[:_MOST_CHARS]
    )


def _failed_as_partner(
    proof: FabricProof, name: str, what: Found, suspect: str, of_suspect: FabricProof | None
) -> FabricProof | None:
    """What is left of the proven one of a pair, None for no change: others that fail with it alone take its proof."""
    if of_suspect is not None and is_suspect(of_suspect) and set(of_suspect.failed_with) - {name}:
        return None
    failed_with = (*proof.failed_with, suspect)
    if len(failed_with) < SETTINGS.enough:
        return replace(proof, failed_with=failed_with)
    return _suspect(proof, _doubt(what, {name, *failed_with}))


def _doubt(what: Found, nodes: Collection[str]) -> str:
    causes = tuple(Cause(Part.NODE, one) for one in sorted(nodes))
    return Claim(what, causes, (), tuple(nodes), sure=len(causes) == 1).sentence[:_MOST_CHARS]


def _with(known: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """The partners, oldest first, each once."""
    return (*(one for one in known if one not in others), *others)[-_MOST_PARTNERS:]
