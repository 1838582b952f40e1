"""Who is held, and why, as text."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_burnin.fleet.held import VERDICTS, Fleet, HostReport, Why
from gpu_burnin.system.host_names import fold
from gpu_burnin.system.prose import STANDARD_WIDTH, short_uuids, table_with_text, wrap

# More held hosts than these are grouped by what they have in common.
_MOST_ROWS = 40
# Codes of one host beside its first reason.
_MOST_CODES = 4
# Runs of host names in one line, and of a group.
_MOST_NAMES, _MOST_OF_GROUP = 4, 12
# Room for the first reason beside a host.
_LEAST_REASON = 44


def render(fleet: Fleet, width: int = STANDARD_WIDTH) -> str:
    """The counts, the reasons with their hosts, then each held host, or where they are many, groups of them."""
    lines = wrap(summary(fleet), width, rest="  ")
    if fleet.held:
        lines += ["", *_reasons(fleet, width), "", *(_rows if len(fleet.held) <= _MOST_ROWS else _groups)(fleet, width)]
        lines += ["", *_next(fleet, width)]
    return "\n".join(lines) + "\n"


def summary(fleet: Fleet) -> str:
    """How many hosts there are, with which verdicts, and when they were tested."""
    count = len(fleet.hosts)
    told = ", ".join(f"{number:,} {verdict}" for verdict, number in fleet.verdicts.items())
    times = sorted(host.finished_at for host in fleet.hosts if host.finished_at)
    tested = f"; tested {tested_at(times[0])} to {tested_at(times[-1])} UTC" if times else ""
    marks = f"; {fleet.simulated:,} on simulated hardware, which proves nothing about real GPUs"
    return f"{count:,} host{'s' * (count != 1)}: {told}{tested}{marks * bool(fleet.simulated)}"


def tested_at(time: str) -> str:
    """A time of a report, to the minute."""
    return time[:16].replace("T", " ")


def verdict_of(host: HostReport) -> str:
    """Its verdict, marked where the hardware was simulated."""
    return f"{host.verdict} (simulated)" if host.simulated else host.verdict


def named(hosts: Iterable[str], most: int) -> list[str]:
    """Names of hosts in at most so many words, for a place that has their number."""
    words, _, left = fold(hosts, most)
    return [*words, f"{left:,} more"] if left else words


def why(reason: Why) -> str:
    """A reason in one sentence."""
    more = f" (and {reason.more_messages} more)" if reason.more_messages else ""
    return f"{reason.code} on {', '.join(reason.units)}: {short_uuids(reason.message)}{more}"


def _reasons(fleet: Fleet, width: int) -> list[str]:
    rows = [("reason", "severity", "hosts", "")]
    for (severity, code), hosts in fleet.reasons.items():
        rows.append((code, severity, f"{len(hosts):,}", ", ".join(named(hosts, _MOST_NAMES))))
    unread = [host.host for host in fleet.held if host.problem]
    if unread:
        rows.append(("no report that counts", "-", f"{len(unread):,}", ", ".join(named(unread, _MOST_NAMES))))
    return ["Why:", *table_with_text(rows, width)]


def _rows(fleet: Fleet, width: int) -> list[str]:
    rows = [("host", "verdict", "tested", "level", "action", "first reasons")]
    for host in fleet.held:
        action = host.action.replace("_", " ") or "-"
        told = tested_at(host.finished_at) or "-"
        rows.append((host.host, verdict_of(host), told, host.level or "-", action, _first(host)))
    return ["Held:", *table_with_text(rows, width, least=_LEAST_REASON)]


def _first(host: HostReport) -> str:
    if not host.reasons:
        return host.problem or "its report gives no reason"
    codes = [code for code in host.codes if code != host.reasons[0].code]
    shown, more = codes[:_MOST_CODES], len(codes) - _MOST_CODES
    also = f"; also {', '.join(shown)}" if shown else ""
    return why(host.reasons[0]) + also + (f" +{more}" if more > 0 else "")


def _groups(fleet: Fleet, width: int) -> list[str]:
    groups: dict[tuple[int, str, str, str], list[str]] = {}
    for host in fleet.held:
        codes = ", ".join(host.codes) if host.reasons else "no report that counts"
        key = (VERDICTS.index(host.verdict), verdict_of(host), host.action.replace("_", " ") or "-", codes)
        groups.setdefault(key, []).append(host.host)
    rows = [("hosts", "verdict", "action", "reasons, and which hosts")]
    for (_, verdict, action, codes), hosts in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        rows.append((f"{len(hosts):,}", verdict, action, f"{codes}: {', '.join(named(hosts, _MOST_OF_GROUP))}"))
    return ["Held, those alike together:", *table_with_text(rows, width)]


def _next(fleet: Fleet, width: int) -> list[str]:
    one = next((host for host in fleet.held if not host.problem), None)
    lines = wrap(f"All of one host: `gpu-burnin report {one.path}`", width, rest="  ") if one else []
    return lines + wrap(
        f"All hosts: `gpu-burnin report {fleet.directory} --html held.html`, or --json", width, rest="  "
    )
