"""`muster who` as text."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_burnin.fleet.jobs.deeds import Deed
from gpu_burnin.fleet.jobs.rights import Holder
from gpu_burnin.fleet.jobs.who import Who
from gpu_burnin.system.clock import rfc3339_s
from gpu_burnin.system.prose import listed, table_with_text, wrap
from gpu_burnin.system.quantities import count


def render(who: Who, width: int, *, all_of_them: bool = False) -> str:
    """Rights first, deeds newest first. Parts of Kubernetes and the fleet are counted, unless all are wanted."""
    shown = [one for one in who.holders if all_of_them or not one.part]
    lines = [f"Who can do what in {who.namespace}", *_rights(shown, width)]
    if hidden := len(who.holders) - len(shown):
        lines.append(f"  {count(hidden, 'part')} of Kubernetes and the fleet besides: --all")
    lines += ["", *_heading(who, width), *_deeds(who.deeds, width)]
    if who.left_out:
        lines.append(f"  {who.left_out:,} older ones are left out: --most, --since")
    for note in who.notes:
        lines += wrap(f"not read: {note}", width, "", "  ")
    return "\n".join(lines) + "\n"


def _rights(holders: Sequence[Holder], width: int) -> list[str]:
    if not holders:
        return ["  nobody"]
    rows = [
        [f"{one.kind} {one.name}", "everywhere" if any(grant.everywhere for grant in one.grants) else "", _can(one)]
        for one in holders
    ]
    return table_with_text(rows, width)


def _can(holder: Holder) -> str:
    roles = list(dict.fromkeys(grant.role for grant in holder.grants))
    text = f"{', '.join(holder.can)} ({listed(roles)})"
    if holder.kind != "group":
        return text
    if holder.members is None:
        return f"{text}; members are not known here"
    return f"{text}; members: {listed(holder.members) or 'none'}"


def _heading(who: Who, width: int) -> list[str]:
    if not who.read:
        return wrap(
            "Who did what: no audit log was read; give the API servers' hosts with --api HOST, or copies with --audit",
            width,
            "",
            "  ",
        )
    return wrap(f"Who did what since {rfc3339_s(who.since)} ({listed(who.read)})", width, "", "  ")


def _deeds(deeds: Sequence[Deed], width: int) -> list[str]:
    return table_with_text([[rfc3339_s(one.at), _author(one), _told(one)] for one in deeds], width) if deeds else []


def _author(deed: Deed) -> str:
    return f"{deed.who} as {deed.acted_as}" if deed.acted_as else deed.who


def _told(deed: Deed) -> str:
    times = f" ({deed.count:,} times since {rfc3339_s(deed.first)})" if deed.count > 1 else ""
    where = f" from {deed.source}" if deed.source else ""
    return f"{deed.did}{where}{times}" if not deed.refused else f"REFUSED {deed.did}{where}{times}: {deed.refused}"
