"""What certificates, joins, burn-ins, power waves and standing tests of the planned fleet come to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_burnin.admission.schedule.rules import TestRules, TestRulesError, parse_tests
from gpu_burnin.api.evidence import shortest_ttl_s
from gpu_burnin.api.levels import LEVEL_NAMES, LEVELS
from gpu_burnin.checks.power.wave import WAVE_SHARE, may_wave, total_s, waves_for
from gpu_burnin.engine.deadlines import deadlines
from gpu_burnin.engine.plan import make_plan, schedule
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.coverage.simulate import TEST_S
from gpu_burnin.fleet.feeds.limits import LIMITS, OTHERS, read_limits
from gpu_burnin.fleet.plan.given import Fault, Given
from gpu_burnin.fleet.plan.model import Figure, Section
from gpu_burnin.system.quantities import count, duration, number
from gpu_burnin.types import Gpu

DAY_S = 86400.0
# Where the inventory does not say how many GPUs a node has.
USUAL_GPUS = 8
# client-go's certificate manager (jitteryDuration) renews at 70 to 90 % of a lifetime.
RENEWED_AT = 0.8
# Until the runs of as many hosts as Ansible works on at a time are started.
START_S = 5.0
_TESTS = "admitter_tests"
_PLACE = "fleet_place"


@dataclass(frozen=True)
class BurnIn:
    """The first burn-in of every GPU node, in one play. Times in seconds; `waves_s` is a node's turn."""

    nodes: int
    gpus: int
    level: str
    level_s: float
    waves_s: float
    at_once: int
    forks: int

    @property
    def batches(self) -> int:
        """How often Ansible takes the next nodes."""
        return -(-self.nodes // self.forks)

    @property
    def turns(self) -> int:
        """How often nodes swing their power, one set of them after the other."""
        return -(-self.nodes // min(self.at_once, self.forks)) if self.waves_s else 0

    @property
    def play_s(self) -> float:
        """The whole play: runs are started in batches, and then take turns (docs/operations/power-waves.md)."""
        return self.batches * START_S + self.level_s + self.turns * self.waves_s

    @property
    def gpu_hours(self) -> float:
        """Hours of GPUs at test."""
        return self.nodes * self.gpus * (self.level_s + self.waves_s) / 3600


def gpu_nodes(given: Given) -> int:
    """The GPU nodes that are planned: every planned node that is not listed as a system node."""
    return max(0, given.planned_nodes - given.hosts("system_nodes"))


def times_of(level: str, gpus: int, extended_s: float) -> tuple[float, float]:
    """How long a burn-in of a level is planned to take, and its power waves of that, in seconds."""
    blank = [Gpu(n, uuid="", serial="", pci_bus_id="", name="", sku="", memory_bytes=0, vbios="") for n in range(gpus)]
    plan = make_plan(level, backend="cuda", gpus=blank, seed=0, duration_s=extended_s if level == "extended" else None)
    power_s = next((step.budget_s for step in schedule(plan) if step.check.name == "power"), 0.0)
    return plan.total_s, total_s(waves_for(level, WAVE_SHARE * power_s))


def extended_over_s(length_s: float = 0.0) -> float:
    """After how many seconds an extended burn-in is over at the latest; of this length, or of the level's own."""
    return deadlines(length_s or LEVELS["extended"].total_s).run_s


def burn_in(given: Given) -> BurnIn | None:
    """The first burn-in of the whole fleet; None where the inventory does not say how."""
    level = str(given.usual("gpu_burnin_level"))
    at_once, extended_s = _at_once(given), given.number("gpu_burnin_extended_s")
    if level not in LEVEL_NAMES or not at_once or not extended_s:
        return None
    gpus = _gpus(given)
    level_s, waves_s = times_of(level, gpus, extended_s)
    waves_s = waves_s if may_wave(str(given.usual("gpu_burnin_power_waves"))) else 0.0
    # The waves are part of the level's time; in a play they come in turns, so all but the last wait for theirs.
    return BurnIn(gpu_nodes(given), gpus, level, level_s - waves_s, waves_s, at_once, max(1, given.forks))


def _at_once(given: Given) -> int:
    """How many nodes may swing at all feeds together; 0 where the inventory does not say."""
    try:
        limits = read_limits(given.usual(LIMITS) or {}, given.usual(OTHERS))
    except GpuBurninError:
        return 0
    places = [setting.value for setting in given.settings.get(_PLACE, ())]
    feeds = {str(place.get("feed") or "") if isinstance(place, Mapping) else "" for place in places}
    # Where no node is listed yet, they may stand at any feed.
    return limits.together(feeds or {"", *limits.by_feed})


def _gpus(given: Given) -> int:
    expected = given.usual("gpu_burnin_expect")
    gpus = expected.get("gpus") if isinstance(expected, Mapping) else None
    return gpus if isinstance(gpus, int) and gpus > 0 else USUAL_GPUS


def certificates(given: Given) -> Section:
    """How many certificates there are, how long they live, and how many are renewed a day."""
    issued = sum(given.certificates.values())
    days, before = given.number("pki_leaf_days"), given.number("pki_renew_before_days")
    kubelet_days = given.number("kube_controller_manager_kubelet_certificate_days")
    kubelets = 2 * given.planned_nodes
    by_ca = ", ".join(f"{name} {how_many:,}" for name, how_many in sorted(given.certificates.items()))
    figures = [
        Figure("issued", "issued on the controller", issued, "1", f"{issued:,}", f"as the inventory is now: {by_ca}"),
        Figure("leaf_days", "they live", days, "d", f"{_days(days)}", "pki_leaf_days"),
        Figure(
            "renewed_by_runs_per_day",
            "renewed by site.yml",
            issued / (days - before) if days and before is not None and days > before else None,
            "1/d",
            f"every {_days(days - before)}" if days and before is not None and days > before else "not known",
            f"a run in the last {_days(before)} (pki_renew_before_days) renews them all",
        ),
        Figure(
            "kubelet", "kubelets' own", kubelets, "1", f"{kubelets:,}", "two for each planned node: client, serving"
        ),
        Figure(
            "kubelet_renewals_per_day",
            "kubelets' renewals",
            kubelets / (RENEWED_AT * kubelet_days) if kubelet_days else None,
            "1/d",
            f"{number(round(kubelets / (RENEWED_AT * kubelet_days), 1))} a day" if kubelet_days else "not known",
            f"at 70 to 90 % of {_days(kubelet_days)} (kube_controller_manager_kubelet_certificate_days); client-go",
        ),
    ]
    return Section("certificates", "Certificates", tuple(figures))


def joining(given: Given) -> Section:
    """How long the admitter's brake lets the fleet take to come in."""
    rate, nodes = given.number("admitter_joins_per_s"), gpu_nodes(given)
    parts = [(share, math.ceil(nodes * share)) for share in (0.1, 0.5, 1.0)]
    source = f"nodes / admitter_joins_per_s, which is {number(rate)}" if rate else "admitter_joins_per_s is not known"
    figures = [
        Figure(
            f"join_{round(share * 100)}_percent_s",
            f"{count(some, 'GPU node')} let in" + (" (all)" if share == 1 else ""),
            some / rate if rate else None,
            "s",
            f"{duration(some / rate)} or more" if rate else "not known",
            source,
        )
        for share, some in parts
    ]
    return Section("joining", "Letting nodes in", tuple(figures))


def burning(given: Given, watts: float | None) -> Section:
    """The first burn-in of all GPU nodes, and how much power swings at once. `watts`: of a GPU at full load."""
    made = burn_in(given)
    if made is None:
        why = f"gpu_burnin_level, gpu_burnin_extended_s, {LIMITS} or {OTHERS} is not known"
        return Section("burnin", "First burn-in", (Figure("play_s", "whole play", None, "s", "not known", why),))
    swinging = min(made.at_once, made.nodes) if made.waves_s else 0
    run_s = made.level_s + made.waves_s
    batches, turns = count(made.batches, "batch", "batches"), count(made.turns, "turn")
    # Nodes at the feeds as the feeds bear them: where many stand at one, its turns take longer.
    limits = f"{LIMITS} and {OTHERS}" if given.usual(LIMITS) else OTHERS
    how = f"{batches} of {made.forks:,} (forks) to start, {turns} of {made.at_once:,} ({limits})"
    waves, at_once = duration(made.waves_s) if made.waves_s else "none", f"{swinging:,}"
    of_all = f"{count(made.nodes, 'GPU node')} of {made.gpus} GPUs"
    figures = (
        Figure("level_s", f"one node, {made.level}", run_s, "s", duration(run_s), "gpu_burnin_level, the level's time"),
        Figure("waves_s", "of it power waves", made.waves_s, "s", waves, "the check power's share of the level"),
        Figure("play_s", "whole play", made.play_s, "s", duration(made.play_s), f"{how}; by the plan, not measured"),
        Figure("gpu_hours", "GPU hours", made.gpu_hours, "h", number(round(made.gpu_hours, 1)), of_all),
        Figure("swinging_nodes", "nodes that swing", swinging, "1", at_once, f"{limits}, at once"),
        _swing(given, made, swinging, watts),
    )
    return Section("burnin", "First burn-in of all GPU nodes", figures)


def _swing(given: Given, made: BurnIn, swinging: int, watts: float | None) -> Figure:
    expected = given.usual("gpu_burnin_expect")
    limit = expected.get("power_limit_w") if isinstance(expected, Mapping) else None
    of_gpu = watts or (float(limit) if isinstance(limit, (int, float)) else None)
    name = "power that swings"
    if not swinging:
        return Figure("swing_w", name, 0, "W", "none", "no node makes power waves")
    if of_gpu is None:
        return Figure(
            "swing_w", name, None, "W", "not known", "give --gpu-watts, or power_limit_w in gpu_burnin_expect"
        )
    swing = swinging * made.gpus * of_gpu
    source = f"{count(swinging, 'node')} x {made.gpus} GPUs x {number(of_gpu)} W; GPUs alone"
    return Figure("swing_w", name, swing, "W", f"{swing / 1000:,.1f} kW", source)


def rules_of(given: Given) -> TestRules | None:
    """The rules of the standing tests; None where they cannot be read."""
    value = given.usual(_TESTS)
    try:
        return parse_tests(value) if isinstance(value, Mapping) else None
    except TestRulesError:
        return None


def busy_nodes(nodes: int, rules: TestRules) -> float:
    """How many nodes would be at test at any moment, were each tested at every level in its period."""
    return sum(nodes * TEST_S[level] / period for level, period in zip(LEVEL_NAMES, rules.periods_s, strict=True))


def retests(given: Given) -> Section:
    """The standing tests of the whole fleet."""
    rules, nodes = rules_of(given), gpu_nodes(given)
    ttl_s = given.number("node_admission_evidence_ttl_s")
    old = Figure("evidence_ttl_s", "evidence counts for", ttl_s, "s", duration(ttl_s) if ttl_s else "not known",
                 "node_admission_evidence_ttl_s")  # fmt: skip
    if rules is None:
        unread = Figure("places", "nodes at once", None, "1", "not known", f"{_TESTS} cannot be read")
        return Section("retests", "Tests ever after", (old, unread))
    figures = [old]
    for level, period in zip(LEVEL_NAMES, rules.periods_s, strict=True):
        per_day = nodes * DAY_S / period
        source = f"each node every {duration(period)}" if per_day else "never"
        figures.append(
            Figure(f"{level}_per_day", f"{level} tests", per_day, "1/d", f"{number(round(per_day))} a day", source)
        )
    busy, places, hours = busy_nodes(nodes, rules), rules.places(nodes), rules.open_s_per_day / 3600
    needed = "nodes x a test's time / its period, over the levels"
    allowed = f"{_TESTS}: the smaller of {rules.nodes:,} and {number(rules.share * 100)} %; {number(hours)} h a day"
    figures += [
        Figure("busy_nodes", "nodes at test, needed", busy, "1", number(round(busy, 1)), needed),
        Figure("places", "nodes at test, allowed", places, "1", f"{places:,}", allowed),
    ]
    return Section("retests", "Tests ever after", tuple(figures))


def problems(given: Given) -> Iterator[Fault]:
    """What in the inventory contradicts these figures."""
    days, before = given.number("pki_leaf_days"), given.number("pki_renew_before_days")
    if days and before is not None and before >= days:
        yield Fault(
            f"pki_renew_before_days is {number(before)}, which is not less than pki_leaf_days ({number(days)})",
            "lower it, or each run issues everything again",
            _where(given, "pki_renew_before_days"),
        )
    rules, nodes = rules_of(given), gpu_nodes(given)
    if rules is None:
        if given.settings.get(_TESTS):
            yield Fault(f"{_TESTS} cannot be read", "correct it, or leave it out", _where(given, _TESTS))
        return
    ttl_s = given.number("node_admission_evidence_ttl_s")
    if ttl_s and rules.standard_every_s and rules.standard_every_s >= (shortest_s := shortest_ttl_s(ttl_s)):
        yield Fault(
            f"{_TESTS} tests a node every {duration(rules.standard_every_s)}, and evidence ends after "
            f"{duration(shortest_s)} to {duration(ttl_s)}, by the node",
            "give a shorter standard_every_s, or a longer node_admission_evidence_ttl_s",
            _where(given, _TESTS),
        )
    needed, places = busy_nodes(nodes, rules), rules.places(nodes)
    open_share = rules.open_s_per_day / DAY_S
    if places and needed > places * open_share:
        # None at all may begin where no hour is open; that is a matter of `hours` alone.
        least = math.ceil(needed / open_share) if open_share else nodes
        more = [f"nodes: {least}"] if rules.nodes < least else []
        if math.floor(nodes * rules.share) < least:
            more.append(f"share: {math.ceil(1000 * least / nodes) / 1000:g}")
        yield Fault(
            f"the tests of {count(nodes, 'GPU node')} in the periods of {_TESTS} take {least:,} nodes at once while "
            f"they may begin, and {places:,} are allowed",
            f"set {' and '.join(more)} in {_TESTS}, or lengthen a period",
            _where(given, _TESTS),
        )


def _where(given: Given, variable: str) -> str:
    found = given.settings.get(variable, ())
    return found[0].where if found else ""


def _days(days: float | None) -> str:
    return "not known" if days is None else count(int(days), "day")
