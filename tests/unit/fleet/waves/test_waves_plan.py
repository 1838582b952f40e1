"""Which nodes are in which wave and shard, and when no further shard begins."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import plan, text
from gpu_burnin.fleet.waves.kinds import KINDS, kind_of, refuse
from gpu_burnin.fleet.waves.model import HostResult, Node, Order, Outcome, Part, Roll
from gpu_burnin.fleet.waves.workers import Workers

SITE = kind_of("site.yml")
ORDER = Order("site.yml", ("inventory/prod",))


def nodes(count: int, model: str = "h100", start: int = 1) -> list[Node]:
    return [Node(f"gpu-{number}", model) for number in range(start, start + count)]


def roll(*waves: tuple[tuple[str, ...], ...], **canaries: str) -> Roll:
    return Roll("now", "now", ORDER, "sum", waves, {name.replace("_", "-"): model for name, model in canaries.items()})


def sizes(made: tuple[tuple[tuple[str, ...], ...], ...]) -> list[list[int]]:
    return [[len(shard) for shard in wave] for wave in made]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 99, 250, 251, 7500])
@pytest.mark.parametrize(("shard_hosts", "workers"), [(1, 1), (3, 2), (250, 8), (10_000, 64)])
def test_each_node_is_in_one_shard_and_none_is_too_large(count: int, shard_hosts: int, workers: int) -> None:
    every = nodes(count)
    made = plan.waves(every, every[:1], shard_hosts, workers)
    hosts = [host for wave in made for shard in wave for host in shard]
    assert sorted(hosts) == sorted(node.name for node in every)
    assert max(map(len, itertools.chain.from_iterable(made))) <= shard_hosts
    assert all(shard for shard in itertools.chain.from_iterable(made))
    assert max(map(len, made)) <= 2 * workers or shard_hosts < 8


def test_a_wave_has_twice_the_nodes_of_the_one_before_dealt_evenly() -> None:
    every = nodes(1000)
    made = plan.waves(every, every[:1], 250, 4)
    assert [sum(wave) for wave in sizes(made)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 489]
    assert sizes(made)[4] == [8, 8], "a process is worth a few nodes"
    assert sizes(made)[-1] == [123, 122, 122, 122]


def test_the_first_wave_has_a_node_of_each_model() -> None:
    every = [*nodes(5), *nodes(3, "b200", 6), Node("system-1")]
    first = plan.canaries(every, 1, None)
    assert [(node.name, node.model) for node in first] == [("gpu-1", "h100"), ("gpu-6", "b200"), ("system-1", "")]
    assert len(plan.canaries(every, 4, None)) == 4 + 3 + 1
    assert plan.waves(every, first, 250, 8)[0] == (("gpu-1", "gpu-6", "system-1"),)


def test_a_canary_group_has_each_model() -> None:
    every = [*nodes(2), *nodes(2, "b200", 3)]
    assert [node.name for node in plan.canaries(every, 1, {"gpu-2", "gpu-4", "other"})] == ["gpu-2", "gpu-4"]
    with pytest.raises(GpuBurninError, match="has none of the nodes"):
        plan.canaries(every, 1, {"other"})
    with pytest.raises(GpuBurninError, match="no node with b200"):
        plan.canaries(every, 1, {"gpu-1"})


def test_a_roll_of_nothing_is_refused() -> None:
    with pytest.raises(GpuBurninError, match="correct --limit"):
        plan.waves([], [], 250, 8)


def test_steps_are_in_their_order() -> None:
    made = plan.stages(roll((("a",),), (("b", "c"), ("d",))), SITE)
    assert [[step.name for step in stage] for stage in made] == [
        ["control"],
        ["wave-01-contact"], ["shard-0001"], ["wave-01-admit"],
        ["wave-02-contact"], ["shard-0002", "shard-0003"], ["wave-02-admit"],
    ]  # fmt: skip
    assert made[4][0].hosts == ("b", "c", "d") and made[5][1].hosts == ("d",)
    tests = plan.stages(roll((("a",),)), KINDS["burnin.yml"])
    assert [[step.part for step in stage] for stage in tests] == [[Part.NODES]]


def test_a_book_with_a_host_in_two_shards_is_refused() -> None:
    plan.refuse_twice(roll((("a",),), (("b",),)))
    with pytest.raises(GpuBurninError, match=r"a is in two shards .* --again"):
        plan.refuse_twice(roll((("a",),), (("b", "a"),)))


@pytest.mark.parametrize("text", ["0", "-1", "0%", "101%", "0.5", "", "five", "1e3", "2 %", "٣"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(GpuBurninError, match="--most-failed"):
        plan.most_failed(text)


@pytest.mark.parametrize(
    ("failed", "tried", "limit", "stops"),
    [
        (0, 100, "1", False), (1, 100, "1", True), (4, 100, "5", False), (5, 100, "5", True),
        (1, 1, "2%", True), (2, 100, "2%", False), (3, 100, "2%", True), (100, 100, "100%", False),
        (0, 0, "2%", False), (29, 100, "29%", False), (30, 100, "29%", True), (41, 1000, "4.1%", False),
    ],
)  # fmt: skip
def test_a_roll_stops_at_its_limit(failed: int, tried: int, limit: str, stops: bool) -> None:
    why = plan.stop([f"gpu-{number}" for number in range(failed)], tried, limit)
    assert bool(why) is stops
    assert not stops or ("gpu-0" in why and limit in why)


@pytest.mark.parametrize(("limit", "says"), [("2%", "stops when more than 2% of"), ("5", "stops when 5 of")])
def test_the_limit_is_told_as_it_counts(limit: str, says: str) -> None:
    made = replace(roll((("gpu-1",),)), order=replace(ORDER, most_failed=limit))
    assert says in "\n".join(text.planned(made, Workers(1, ("1 core",))))


def test_a_model_whose_canaries_may_not_work_is_not_gone_on_with() -> None:
    held, done = HostResult(Outcome.HELD, "FAIL: XID_FATAL"), HostResult(Outcome.DONE)
    made = roll((("gpu-1", "gpu-2", "gpu-3"),), gpu_1="h100", gpu_2="h100", gpu_3="b200")
    assert plan.held_canaries(made, {"gpu-1": held, "gpu-2": done, "gpu-3": done}) == ""
    assert plan.held_canaries(made, {}) == ""
    assert plan.held_canaries(made, {"gpu-1": held, "gpu-3": done}) == "", "gpu-2 may still take work"
    why = plan.held_canaries(made, {"gpu-1": done, "gpu-2": done, "gpu-3": held})
    assert "no canary of b200" in why and "gpu-3: FAIL: XID_FATAL" in why and why.endswith("with other canaries")
    left, failed = HostResult(Outcome.LEFT, "silent"), HostResult(Outcome.FAILED, "no room")
    why = plan.held_canaries(made, {"gpu-1": left, "gpu-2": failed, "gpu-3": done})
    assert "no canary of h100" in why and "(gpu-2: no room)" in why and why.endswith("has those that failed again")
    assert plan.held_canaries(made, {"gpu-1": left, "gpu-2": left, "gpu-3": done}) == "", "a dead node says nothing"


def test_only_what_is_known_can_be_rolled() -> None:
    assert kind_of("playbooks/driver_upgrade.yml").most_workers == 1, "it has one lock"
    with pytest.raises(GpuBurninError, match=r"etcd_restore\.yml cannot be rolled: site\.yml, "):
        kind_of("playbooks/etcd_restore.yml")


@pytest.mark.parametrize(
    ("word", "says"),
    [("-l", "give --limit and -i"), ("--limit=rack7", "give --limit"), ("-irack7", "-i before"),
     ("--list-hosts", "no node would be done"), ("--syntax-check", "no node would be done"), ("--tags=pki", "tags"),
     ("--ste", "no node would be done"), ("--vers", "no node would be done"), ("-vh", "no node would be done"),
     ("-Cl", "give --limit"), ("-Dvirack7", "-i before"), ("--in", "-i before"), ("--ta=pki", "tags"), ("-bt", "tags")],
)  # fmt: skip
def test_arguments_that_no_shard_may_have_are_refused(word: str, says: str) -> None:
    """A --limit behind `--` was overruled by that of each shard: all nodes were gone over."""
    with pytest.raises(GpuBurninError, match=re.escape(word)) as refused:
        refuse(SITE, ("--forks", "50", word))
    assert says in str(refused.value)


def test_other_arguments_are_ansible_s() -> None:
    refuse(SITE, ("--forks", "50", "-e", "a=1", "--skip-tags", "x", "--check", "--diff", "-T", "9", "-vv"))
    refuse(SITE, ("--verbose", "--start-at-task", "x", "--timeout", "9", "-bD", "--vault-id", "x"))
    refuse(KINDS["burnin.yml"], ("-t", "x"))


def test_a_roll_is_what_it_was_when_it_is_read_again() -> None:
    made = roll((("a",),), a="h100")
    assert replace(made, before=2).hosts == ("a",)
