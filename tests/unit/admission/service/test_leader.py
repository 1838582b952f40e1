"""One leader: the Lease, and who may write when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.service.leader import LEASE_S, RENEW_S, WRITE_S, Leadership, NotLeader
from tests.support.fake_api import FakeApi, refusing


class Clocks:
    """Three clocks of one host, which the test sets."""

    def __init__(self) -> None:
        self.times = [50.0, 60.0, 1.7e9]

    def __call__(self) -> tuple[float, ...]:
        return tuple(self.times)

    def go(self, seconds: float) -> None:
        self.times = [time + seconds for time in self.times]


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def candidate(api: FakeApi, kube: KubeApi, clocks: Clocks) -> Iterator[Callable[[str], Leadership]]:
    yield lambda identity: Leadership(kube, identity, clocks)


def lease(api: FakeApi) -> dict[str, object]:
    spec: dict[str, object] = api.objects["leases"]["muster-system/muster-admitter"]["spec"]
    return spec


def test_the_first_takes_it_and_keeps_it(api: FakeApi, candidate: Callable[[str], Leadership], clocks: Clocks) -> None:
    one, two = candidate("one"), candidate("two")
    assert one.campaign() == RENEW_S and one.held()
    for _ in range(10):
        assert two.campaign() < RENEW_S and not two.held()
        clocks.go(RENEW_S)
        one.campaign()
    assert lease(api)["holderIdentity"] == "one" and lease(api)["leaseTransitions"] == 0


def test_a_dead_leader_is_followed_once_its_time_is_over(
    api: FakeApi, candidate: Callable[[str], Leadership], clocks: Clocks
) -> None:
    one, two = candidate("one"), candidate("two")
    one.campaign()
    two.campaign()
    clocks.go(LEASE_S - 0.1)
    assert two.campaign() == pytest.approx(0.1) and not two.held()
    clocks.go(0.1)
    two.campaign()
    assert two.held() and not one.held()
    assert lease(api)["holderIdentity"] == "two" and lease(api)["leaseTransitions"] == 1
    one.campaign()
    with pytest.raises(NotLeader):
        one.check()


@pytest.mark.parametrize("clock", [0, 1, 2])
def test_each_clock_alone_ends_its_time(candidate: Callable[[str], Leadership], clocks: Clocks, clock: int) -> None:
    one = candidate("one")
    one.campaign()
    one.check()
    clocks.times[clock] += WRITE_S
    with pytest.raises(NotLeader):
        one.check()


def test_a_clock_that_was_set_back_ends_its_time(candidate: Callable[[str], Leadership], clocks: Clocks) -> None:
    one = candidate("one")
    one.campaign()
    clocks.times[2] -= 3600
    assert not one.held()


def test_of_two_that_take_it_at_once_one_has_it(
    api: FakeApi, candidate: Callable[[str], Leadership], clocks: Clocks
) -> None:
    old, one, two = candidate("old"), candidate("one"), candidate("two")
    old.campaign()
    one.campaign()
    two.campaign()
    clocks.go(LEASE_S)
    raced: list[str] = []

    def race(path: str) -> None:
        if not raced:
            raced.append(path)
            two.campaign()

    api.before_write = race
    one.campaign()
    assert (one.held(), two.held()) == (False, True)


def test_a_lease_given_back_is_free_at_once(candidate: Callable[[str], Leadership]) -> None:
    one, two = candidate("one"), candidate("two")
    one.campaign()
    one.release()
    two.campaign()
    assert (one.held(), two.held()) == (False, True)


def test_without_rights_nobody_leads(api: FakeApi, candidate: Callable[[str], Leadership]) -> None:
    api.before_write = refusing(403, "leases is forbidden")
    one = candidate("one")
    with pytest.raises(ApiError, match=r"create the Lease muster-system/muster-admitter: leases is forbidden"):
        one.campaign()
    assert not one.held()


def test_a_write_is_asked_for_last_of_all(api: FakeApi, tmp_path: Path) -> None:
    def refuse() -> None:
        raise NotLeader("over")

    fenced = KubeApi(api.kubeconfig(tmp_path / "fenced"), before_write=refuse)
    assert fenced.nodes() == {}
    writes: tuple[Callable[[], object], ...] = (
        lambda: fenced.patch("/api/v1/nodes/x", []),
        lambda: fenced.create("/api/v1/namespaces/default/events", {}),
        lambda: fenced.put_csr_approval({"metadata": {"name": "x"}}),
        lambda: fenced.delete("/api/v1/nodes/x"),
    )
    for write in writes:
        with pytest.raises(NotLeader):
            write()
    assert api.writes() == []
