"""A member joins a rendezvous that it has verified, and signs what it has found itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpu_burnin import __version__
from gpu_burnin.api import evidence, fabric_view, rendezvous
from gpu_burnin.api.evidence import one_line
from gpu_burnin.api.fabric_documents import Holds, RendezvousError, Signed, Why, parse_signed, reason
from gpu_burnin.api.fabric_view import MemberView, Outcome, PeerView, RailView, WrongElement
from gpu_burnin.api.rendezvous import Rendezvous
from gpu_burnin.checks.fabric.meeting import Meeting, Peer
from gpu_burnin.checks.fabric.result import Finding, PeerFinding
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.fabric import used
from gpu_burnin.node.fabric.own import Own, check_output, read_given, write_output
from gpu_burnin.node.signing import sign

# A link on which nothing comes for so long has stalled.
STALL_S = 10.0


@dataclass(frozen=True)
class Accepted:
    """A rendezvous that this node may join, as this rank."""

    signed: Signed
    rendezvous: Rendezvous
    rank: int


def join(
    offer_path: Path,
    keys_path: Path,
    output: Path,
    own: Own,
    now: datetime,
    run: Callable[[Meeting], Finding],
) -> MemberView:
    """Verify the offer, use it up, run its collectives, and write what was found, signed.

    Raises GpuBurninError for files that cannot be used, RendezvousError for an offer that is refused, then nothing was
    sent, and where this host cannot do its part.
    """
    check_output(output)
    offered, listed = read_given(offer_path, "the offer"), read_given(keys_path, "the list of keys")
    accepted = accept(offered, listed, own, now)
    used.use(own.state_dir, accepted.rendezvous, now)
    try:
        finding = run(meeting_of(accepted))
    except GpuBurninError as error:
        raise RendezvousError(Why.HOST, f"{own.name}: {error}") from error
    view = view_of(accepted, own, finding)
    statement = view.canonical()
    # What the controller would not read is a fault of this program, and is not signed.
    fabric_view.parse_view(statement)
    write_output(output, Signed(statement, sign(statement, own.host_key, fabric_view.NAMESPACE)).document())
    return view


def accept(offered: bytes, listed: bytes, own: Own, now: datetime, holds: Holds = evidence.signature_holds) -> Accepted:
    """The rendezvous, where it is one for this node, in this boot, now. Raises RendezvousError. Reads no file."""
    try:
        signed = parse_signed(offered)
    except ValueError as error:
        raise RendezvousError(
            Why.FORM, f"the offer cannot be read ({reason(error)}); take it as `gpu-burnin fabric offer` wrote it"
        ) from error
    keys = _keys(listed)
    made = rendezvous.read_rendezvous(signed, keys, holds)
    rank = _rank(made, keys, own)
    rendezvous.check_times(made, now)
    return Accepted(signed, made, rank)


def _keys(listed: bytes) -> Mapping[str, str]:
    try:
        return rendezvous.parse_keys(listed.decode("ascii"))
    except ValueError as error:
        raise RendezvousError(
            Why.KEYS, f"the list of keys cannot be used ({reason(error)}); write it anew from the pinned host keys"
        ) from error


def _rank(made: Rendezvous, keys: Mapping[str, str], own: Own) -> int:
    if own.name not in made.names:
        raise RendezvousError(
            Why.MEMBER, f"{own.name}: is no member of test {made.test}; give the offer to {', '.join(made.names[:4])}"
        )
    unknown = [name for name in made.names if name not in keys]
    if unknown:
        raise RendezvousError(
            Why.KEYS, f"{unknown[0]}: is a member, and its host key is not among the keys; give the key of each member"
        )
    if keys[own.name] != own.key:
        raise RendezvousError(
            Why.MEMBER,
            f"{own.name}: the key listed for this name is not the host key here; compare the host with its pinned key",
        )
    rank = made.names.index(own.name)
    if made.members[rank].boot_id != own.boot_id:
        raise RendezvousError(
            Why.BOOT,
            f"{own.name}: the offer is of boot {made.members[rank].boot_id}, and now it is {own.boot_id}; make it anew",
        )
    return rank


def meeting_of(accepted: Accepted) -> Meeting:
    """The rendezvous as the collectives take it."""
    made = accepted.rendezvous
    return Meeting(
        members=tuple(Peer(one.name, {nic.rail: nic.address for nic in one.nics}) for one in made.members),
        rank=accepted.rank,
        port=made.port,
        secret=made.secret,
        rails=made.rails,
        seconds=made.seconds,
        size_bytes=made.size_bytes,
        seed=made.seed,
        join_s=made.valid_s,
        stall_s=STALL_S,
    )


def view_of(accepted: Accepted, own: Own, found: Finding) -> MemberView:
    """What was found, as this node signs it."""
    return MemberView(
        run=accepted.rendezvous.run,
        test=accepted.rendezvous.test,
        rendezvous=accepted.signed.digest,
        member=own.name,
        boot_id=own.boot_id,
        version=__version__,
        outcome=Outcome(found.outcome),
        bytes_per_s=found.bytes_per_s,
        rails=tuple(RailView(one.rail, Outcome(one.outcome), one.bytes_per_s, one.loopback) for one in found.rails),
        peers=tuple(_peer(one) for one in found.peers),
        detail=one_line(found.detail),
    )


def _peer(found: PeerFinding) -> PeerView:
    first = found.first_wrong
    wrong = WrongElement(first.position, first.expected, first.got, first.kind) if first else None
    return PeerView(
        found.rank,
        found.name,
        Outcome(found.outcome),
        found.wrong_elements,
        wrong,
        found.bytes_per_s,
        one_line(found.detail),
    )
