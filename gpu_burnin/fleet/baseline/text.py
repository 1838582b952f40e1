"""What `muster baseline` says, as text: who lies outside, then what was compared, and from which loss on it tells."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from gpu_burnin.fleet.baseline import FALSE_NAMES
from gpu_burnin.fleet.baseline.comparison import DRIFTS, Baseline, Outside
from gpu_burnin.fleet.baseline.judge import ALL_GPUS, Cell
from gpu_burnin.fleet.baseline.points import Setting
from gpu_burnin.system.prose import STANDARD_WIDTH, short_uuids, table, wrap
from gpu_burnin.system.quantities import count, rate

# Hosts, and rates of one host, that are told; --json has all.
_MOST_HOSTS, _MOST_RATES = 20, 4
_MOST_PROBLEMS = 5


def render(found: Baseline, width: int = STANDARD_WIDTH) -> str:
    """Lines of at most `width` characters, but for longer words."""
    lines = wrap(_summary(found), width, rest="  ")
    for problem in found.problems[:_MOST_PROBLEMS]:
        lines += wrap(problem, width, "! ", "  ")
    if len(found.problems) > _MOST_PROBLEMS:
        lines.append(f"! and {len(found.problems) - _MOST_PROBLEMS:,} more: --json")
    hosts = found.by_host
    for host, ones in [*hosts.items()][:_MOST_HOSTS]:
        lines += ["", host]
        lines += [line for one in ones[:_MOST_RATES] for line in wrap(sentence(one), width, "  ", "    ")]
        if len(ones) > _MOST_RATES:
            lines.append(f"  and {len(ones) - _MOST_RATES} more rates: --json")
    if len(hosts) > _MOST_HOSTS:
        lines += ["", f"and {len(hosts) - _MOST_HOSTS:,} more hosts: --json"]
    compared = [cell for cell in found.cells if cell.share is not None]
    for heading, cells in _by_peers(compared).items():
        lines += ["", *wrap(heading, width, rest="  "), *_table(cells, width)]
    if few := [cell for cell in found.cells if cell.share is None]:
        lines += ["", *wrap(_too_few(few, found.least), width, rest="  ")]
    if found.tests:
        lines += ["", *wrap(_bound(found), width)]
    if hosts:
        lines += ["", "Ask for tests of them: `muster baseline --retest` (dry), then with `--yes`"]
    return "\n".join(lines) + "\n"


def sentence(one: Outside) -> str:
    """One rate that lies outside, in a sentence."""
    away = f", {one.mads:,.1f} MADs" if one.mads is not None else ""
    peers = count(one.peers, "peer")
    where = short_uuids(one.place)
    if one.code == DRIFTS:
        return (
            f"{where}: {one.rate.name} loses {-(one.per_week or 0):.2%} a week against its peers: {one.lost:.1%} in "
            f"{one.weeks or 0:.0f} weeks ({one.points} runs; {peers}{away})"
        )
    value, usual = rate(one.value, one.rate.unit), rate(one.median, one.rate.unit)
    return f"{where}: {one.rate.name} {value} is {one.lost:.1%} under {usual}, the median of {peers}{away}"


def _summary(found: Baseline) -> str:
    what = f"{count(found.hosts, 'host')} with a PASS on real hardware, {count(found.gpus, 'GPU')}"
    outside = count(len(found.by_host), "host lies", "hosts lie") if found.outside else "none lies"
    left = "".join(f"; {count(number, 'host')} left out: {why}" for why, number in sorted(found.left_out.items()))
    told = f"{outside} outside" if found.tests else f"too few to say: no group has {found.least} peers"
    return f"{what}: {told}{left}"


def _bound(found: Baseline) -> str:
    return (
        f"{found.tests:,} rates were compared. Of {round(1 / FALSE_NAMES)} healthy fleets one at the most has a "
        "healthy GPU or node named, on average, however its rates spread, as long as slow ones get rarer at least as "
        "fast as in an exponential distribution."
    )


def _by_peers(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of what is compared with each other, but for slots and rates."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(f"{cell.model}, VBIOS {cell.vbios}, {setting_text(cell.setting)}", []).append(cell)
    return found


def setting_text(setting: Setting) -> str:
    """A setting in words."""
    driver, chassis = f"driver {setting.driver or 'unknown'}", f", {setting.chassis}" if setting.chassis else ""
    limits = f" ({setting.limits})" if setting.limits else ""
    return f"{driver}{chassis}, level {setting.level}, gpu-burnin {setting.gpu_burnin}{limits}"


def _table(cells: Iterable[Cell], width: int) -> list[str]:
    """A row of each rate: what is usual, how far peers spread, and the smallest loss that is named."""
    by_rate: dict[str, list[Cell]] = {}
    for cell in cells:
        by_rate.setdefault(cell.rate.name, []).append(cell)
    rows = [("rate", "peers", "median", "MAD", "GPU from", "node from")]
    for name, ones in by_rate.items():
        single = [cell for cell in ones if cell.slot != ALL_GPUS]
        nodes = [cell for cell in ones if cell.slot == ALL_GPUS]
        medians = sorted(cell.spread.median for cell in single)
        low, high = rate(medians[0], ones[0].rate.unit), rate(medians[-1], ones[0].rate.unit)
        mad = statistics.median(cell.spread.mad / cell.spread.median for cell in single)
        rows.append(
            (
                name,
                f"{min(cell.spread.peers for cell in single):,}",
                low if low == high else f"{low.split()[0]}-{high}",
                f"{mad:.2%}",
                _from(single),
                _from(nodes),
            )
        )
    columns = [*zip(*rows, strict=True)]
    return table(columns[0], [columns[1:4], columns[4:]], width)


def _from(cells: Iterable[Cell]) -> str:
    shares = [cell.share for cell in cells if cell.share is not None]
    return f"-{max(shares):.1%}" if shares else ""


def _too_few(cells: list[Cell], least: int) -> str:
    kinds = {(cell.model, cell.vbios, cell.setting, cell.slot): cell.spread.peers for cell in cells}
    named = sorted({f"{cell.model} at {setting_text(cell.setting)}" for cell in cells})
    shown = "; ".join(named[:3]) + (f"; and {len(named) - 3} more" if len(named) > 3 else "")
    return f"{count(len(kinds), 'group')} of fewer than {least} peers are not compared: {shown}"
