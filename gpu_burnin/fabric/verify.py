"""What the members of a test have signed, verified: the offer of rank 0, then each view. Reads no file.

A view that does not verify is no view: its member is silent, and `refused` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.api import fabric_view, rendezvous
from gpu_burnin.api.fabric_documents import Holds, RendezvousError, Signed, Why, parse_signed, parsed, reason
from gpu_burnin.api.fabric_view import MemberView
from gpu_burnin.api.rendezvous import FabricTest, Rendezvous
from gpu_burnin.fabric.model import Result, SignedView, View


@dataclass(frozen=True)
class Offered:
    """What the members of a test meet by: rank 0's statement, byte for byte, and what it says."""

    signed: Signed
    rendezvous: Rendezvous


@dataclass(frozen=True)
class Refused:
    """A member whose view counts for nothing, and one sentence that says why and what to do."""

    member: str
    why: str


@dataclass(frozen=True)
class Verified:
    """A test's result; whose views were refused; and all that the others have found, of each peer too."""

    result: Result
    refused: tuple[Refused, ...]
    found: tuple[MemberView, ...]


def offered(data: bytes, test: FabricTest, keys: Mapping[str, str], now: datetime, holds: Holds) -> Offered:
    """The offer for exactly this test. `keys` are the pinned host keys by name. Raises RendezvousError."""
    first = test.members[0].name
    try:
        signed = parse_signed(data)
    except ValueError as error:
        raise RendezvousError(
            Why.FORM,
            f"{first}: its offer cannot be read ({reason(error)}); install the same gpu-burnin there, and test again",
        ) from error
    made = rendezvous.read_rendezvous(signed, keys, holds)
    if not made.same_terms(test):
        raise RendezvousError(
            Why.OTHER, f"{first}: its offer is of another test than {test.test} of run {test.run}; test again"
        )
    rendezvous.check_times(made, now)
    return Offered(signed, made)


def made_at(data: bytes) -> datetime | None:
    """When an offer says that it was made; None where it cannot be read. Nothing is verified."""
    try:
        return parsed(Rendezvous, rendezvous.SCHEMA, parse_signed(data).statement).made
    except ValueError:
        return None


def result_of(
    offer: Offered,
    views: Mapping[str, bytes],
    keys: Mapping[str, str],
    boots: Mapping[str, str],
    holds: Holds,
) -> Verified:
    """The result of a test. `views` are the files by the member that each was fetched from, of those that have one.

    `boots` are boot ids that were read after the test, as far as they could be.
    """
    found: list[tuple[MemberView, str]] = []
    refused = []
    for member, data in views.items():
        try:
            found.append(_view(offer, member, data, keys, holds))
        except RendezvousError as error:
            refused.append(Refused(member, str(error)))
    rebooted = [one.name for one in offer.rendezvous.members if boots.get(one.name, one.boot_id) != one.boot_id]
    signed_views = tuple(SignedView(_of_model(view), signature) for view, signature in found)
    result = Result(offer.rendezvous.test, signed_views, tuple(rebooted))
    return Verified(result, tuple(refused), tuple(view for view, _ in found))


def _view(offer: Offered, member: str, data: bytes, keys: Mapping[str, str], holds: Holds) -> tuple[MemberView, str]:
    if member not in offer.rendezvous.names:
        raise RendezvousError(Why.MEMBER, f"{member}: is no member of test {offer.rendezvous.test}; leave its view out")
    if member not in keys:
        raise RendezvousError(Why.KEYS, f"{member}: has no pinned host key; pin it (muster probe), and test again")
    try:
        signed = parse_signed(data)
    except ValueError as error:
        raise RendezvousError(
            Why.FORM,
            f"{member}: its view cannot be read ({reason(error)}); install the same gpu-burnin there, and test again",
        ) from error
    view = fabric_view.read_view(signed, member, offer.signed, offer.rendezvous, keys[member], holds)
    return view, signed.signature


def _of_model(view: MemberView) -> View:
    return View(view.test, view.member, view.version, view.outcome, view.bytes_per_s, view.rails)
