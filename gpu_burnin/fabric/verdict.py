"""What the members' views of one test come to, before rates are compared. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_burnin.fabric.model import ALL, Found, Judged, Outcome, Purpose, Result, Test, View

_FOUND: Mapping[Outcome, Found] = {
    Outcome.OK: Found.PASS,
    Outcome.WRONG: Found.WRONG,
    Outcome.UNREACHABLE: Found.UNREACHABLE,
    Outcome.MTU: Found.MTU,
    Outcome.STALLED: Found.STALLED,
}
_GRAVITY = list(Found)


def verdict_of(test: Test, result: Result | None) -> tuple[Judged, dict[int, float]]:
    """What the test came to, and the lowest rate of its members, by scope."""
    views = {signed.view.member: signed.view for signed in result.views} if result else {}
    if why := _spoiled(test, result, views):
        return Judged(test, dict.fromkeys((ALL, *test.rails), Found.SPOILED), why=why), {}
    silent = [member for member in test.members if member not in views]
    if silent:
        return _of_silence(test, silent), {}
    by_scope = {ALL: _gravest(view.outcome for view in views.values())}
    rates = {ALL: [view.bytes_per_s for view in views.values()]}
    loops: dict[bool, list[tuple[str, int]]] = {True: [], False: []}
    if test.rails:
        for view in views.values():
            for rail in view.rails:
                if rail.loopback is not None:
                    loops[rail.loopback].append((view.member, rail.rail))
        for number in test.rails:
            of_rail = [rail for view in views.values() for rail in view.rails if rail.rail == number]
            whole = len(of_rail) == len(test.members)
            by_scope[number] = _gravest(rail.outcome for rail in of_rail) if whole else Found.SPOILED
            rates[number] = [rail.bytes_per_s for rail in of_rail]
    lowest = {scope: min(rate for rate in all_ if rate is not None) for scope, all_ in rates.items() if any(all_)}
    judged = Judged(
        test,
        by_scope,
        lowest.get(ALL),
        loopback_failed=tuple(loops[False]),
        loopback_passed=tuple(loops[True]),
    )
    return judged, lowest


def _spoiled(test: Test, result: Result | None, views: Mapping[str, View]) -> str:
    if result is not None and result.absent:
        return "; ".join(f"{member} took no part: {why}" for member, why in result.absent.items())
    if result is None or (not views and not result.rebooted):
        return "no member has answered"
    if result.rebooted:
        return f"{', '.join(result.rebooted)} rebooted in the middle of it"
    versions: dict[str, list[str]] = {}
    for view in views.values():
        versions.setdefault(view.version, []).append(view.member)
    if len(versions) > 1:
        told = (f"{version} on {', '.join(sorted(of))}" for version, of in sorted(versions.items()))
        return f"its members run other versions: {'; '.join(told)}"
    return ""


def _of_silence(test: Test, silent: Sequence[str]) -> Judged:
    """Members whose view did not come. Where that is the suspect's partner alone, the test says nothing of it."""
    of_suspect = {test.suspect} if test.purpose in (Purpose.PROBE, Purpose.CATCH_UP) else set(test.members)
    found = Found.SILENT if of_suspect & set(silent) else Found.SPOILED
    return Judged(test, dict.fromkeys((ALL, *test.rails), found), why=f"{', '.join(silent)} did not answer")


def _gravest(outcomes: Iterable[Outcome]) -> Found:
    return min((_FOUND[outcome] for outcome in set(outcomes)), key=_GRAVITY.index)
