"""Self-tests on faulty hardware: what is wrong with nothing injected is the GPU's fault, with code and place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks import REGISTRY, SELFTESTED
from gpu_burnin.checks.hbm.cpu import CpuHbm
from gpu_burnin.checks.nccl.cpu import CpuNccl
from gpu_burnin.checks.nccl.operations import Operation
from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.sm.cpu import CpuSm
from gpu_burnin.exact import product
from gpu_burnin.exact.cpu import CpuProducts
from gpu_burnin.types import SelftestResult, Verdict
from tests.support.engine_helpers import context, gpu, plan
from tests.support.executor_helpers import Fake, events, reasons_of

Break = Callable[[pytest.MonkeyPatch], None]


def _bits(where: Any, index: int = 5) -> None:
    """Turn one bit over."""
    where.view(np.uint8).reshape(-1)[index] ^= 1


def _break_products(patch: pytest.MonkeyPatch) -> None:
    multiply = CpuProducts.gemm

    def gemm(self: CpuProducts, precision: str, a: Any, b: Any, c: Any) -> None:
        multiply(self, precision, a, b, c)
        _bits(c.data, -1)

    patch.setattr(CpuProducts, "gemm", gemm)


def _break_sms(patch: pytest.MonkeyPatch) -> None:
    run = CpuSm.run

    def on_sms(self: CpuSm, *args: Any) -> Any:
        found = run(self, *args)
        found.rows[found.smid == 1, 0] ^= np.uint64(1)
        return found

    patch.setattr(CpuSm, "run", on_sms)


def _break_memory(patch: pytest.MonkeyPatch) -> None:
    write = CpuHbm.write

    def spoiled(self: CpuHbm, *args: Any) -> None:
        write(self, *args)
        _bits(self._words)

    patch.setattr(CpuHbm, "write", spoiled)


def _break_pcie(patch: pytest.MonkeyPatch) -> None:
    copy = CpuPcie._copy

    def spoiled(self: CpuPcie, way: str, number: int, destination: Any, source: Any) -> None:
        copy(self, way, number, destination, source)
        _bits(destination)

    patch.setattr(CpuPcie, "_copy", spoiled)


def _break_peers(patch: pytest.MonkeyPatch) -> None:
    verify = CpuNvlink.verify
    patch.setattr(CpuNvlink, "verify", lambda self, uuid, key: verify(self, uuid, key + 1))


def _break_collectives(patch: pytest.MonkeyPatch) -> None:
    loop = CpuNccl.loop

    def spoiled(self: CpuNccl, op: Operation) -> None:
        loop(self, op)
        self.flip(op, 3, 1)

    patch.setattr(CpuNccl, "loop", spoiled)


# What is broken, the code that names it, and what says where.
BROKEN: dict[str, tuple[Break, str, str]] = {
    "gemm": (_break_products, "GEMM_MISMATCH", "row"),
    "sm": (_break_sms, "SM_MISMATCH", "sm"),
    "hbm": (_break_memory, "HBM_BIT_ERROR", "offset_bytes"),
    "pcie": (_break_pcie, "PCIE_DATA", "offset_bytes"),
    "nvlink": (_break_peers, "P2P_CORRUPTED", "offset_bytes"),
    "nccl": (_break_collectives, "NCCL_DATA", "element"),
    "power": (_break_products, "POWER_MISMATCH", "row"),
}


def test_every_selftest_has_a_case() -> None:
    assert set(BROKEN) == SELFTESTED


@pytest.fixture(params=BROKEN)
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, tuple[SelftestResult, ...]]:
    """A check and what its self-test says on hardware that is broken from the start."""
    name: str = request.param
    BROKEN[name][0](monkeypatch)
    return name, REGISTRY[name].selftest(context())


def test_what_is_wrong_without_a_fault_is_a_fault(found: tuple[str, tuple[SelftestResult, ...]]) -> None:
    name, tests = found
    _, code, place = BROKEN[name]
    real = [test.real for test in tests if test.real is not None]
    assert real, tests
    assert {(one.code, one.check, one.gpu, one.severity) for one in real} == {(code, name, gpu().uuid, Verdict.FAIL)}
    assert all(one.details[place] is not None and one.details["phase"] == "self-test" for one in real)
    assert not any(test.injected for test in tests if test.real), "nothing could be injected into it"


def test_an_intermittent_fault_of_the_link_beside_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_pcie(monkeypatch)
    tests = REGISTRY["power"].selftest(context())
    assert [test.real.code for test in tests if test.real] == ["PCIE_DATA"]
    assert all(test.detected for test in tests if not test.real), "the products were right"


@pytest.mark.parametrize("piece", [2, 5])
def test_a_real_fault_between_gpus_beside_an_injected_one(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """In a piece that the injected fault leaves alone, or in more words of the one that it strikes."""
    verify, clean = CpuNvlink.verify, iter([True])

    def spoiled(self: CpuNvlink, uuid: str, key: int) -> Any:
        inbox: Any = self._inbox(uuid, uuid)
        if not next(clean, False):
            _bits(inbox, piece * inbox.nbytes // 8 + 32)
        return verify(self, uuid, key)

    monkeypatch.setattr(CpuNvlink, "verify", spoiled)
    (test,) = REGISTRY["nvlink"].selftest(context())
    assert test.real is not None
    assert (test.fault, test.real.code, test.detected) == ("corrupted write", "P2P_CORRUPTED", False)
    assert "beside the injected fault" in test.real.message


def test_a_real_fault_of_the_link_beside_the_injected_one_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    inject = CpuPcie.inject

    def breaks(self: CpuPcie, *args: Any) -> None:
        inject(self, *args)
        _break_pcie(monkeypatch)

    monkeypatch.setattr(CpuPcie, "inject", breaks)
    tests = REGISTRY["power"].selftest(context())
    assert ["beside the injected fault" in test.real.message for test in tests if test.real] == [True]


def test_a_product_that_is_wrong_once_in_the_selftest_fails_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never comes again, and the check itself is clean: it was there."""
    problems, calls = product.ProductUnit._problems, iter(range(10**9))

    def once(self: product.ProductUnit, *args: Any) -> tuple[str, ...]:
        return ("mismatch",) if next(calls) == 0 else problems(self, *args)

    monkeypatch.setattr(product.ProductUnit, "_problems", once)
    tests = REGISTRY["gemm"].selftest(context())
    assert [(test.real.code, "came out right" in test.real.message) for test in tests if test.real] == [
        ("GEMM_MISMATCH", True)
    ]


# --- what the supervisor makes of it ---


def test_a_real_fault_stays_when_the_check_itself_is_clean(fake: Fake) -> None:
    result = fake("selftest meets a fault", plan("gemm", selftest=True))
    (done,) = result.results
    assert (reasons_of(done), done.verdict) == ([("GEMM_MISMATCH", Verdict.FAIL)], Verdict.FAIL)
    assert done.errors == ({"row": 3, "phase": "self-test"},), "where it was"
    assert "check_started" in events(result), "the check runs all the same, and may locate it better"


def test_selftests_alone_tell_of_a_real_fault_too(fake: Fake) -> None:
    made = replace(plan("gemm", "hbm", selftest=True), checks_off=True)
    result = fake("selftest meets a fault", made)
    assert [(done.name, reasons_of(done)) for done in result.results] == [("gemm", [("GEMM_MISMATCH", Verdict.FAIL)])]


@pytest.mark.parametrize("mode", ["selftest dies", "selftest segfaults"])
def test_a_worker_that_dies_twice_in_the_selftest_is_a_fault_of_the_gpu(fake: Fake, mode: str) -> None:
    result = fake(mode, plan("gemm", "hbm", selftest=True))
    assert {done.name: reasons_of(done) for done in result.results} == {
        "gemm": [("WORKER_DIED", Verdict.FAIL)], "hbm": [("WORKER_DIED", Verdict.FAIL)],
    }  # fmt: skip
    assert "twice during the self-test of gemm" in result.results[0].reasons[0].message
    assert result.selftests == (), "no detector is blamed"


def test_a_worker_that_dies_once_in_the_selftest_is_tried_again(fake: Fake) -> None:
    result = fake("selftest dies once", plan("gemm", selftest=True))
    assert [reasons_of(done) for done in result.results] == [[("WORKER_DIED", Verdict.INCONCLUSIVE)]]
    assert events(result).count("selftest_started") == 2


def test_damage_that_the_gpu_reports_in_the_selftest_is_the_verdict(fake: Fake) -> None:
    result = fake("selftest reports damage", plan("gemm", selftest=True))
    assert [reasons_of(done) for done in result.results] == [[("ECC_UNCORRECTED", Verdict.FAIL)]]
    assert result.selftests == ()


def test_a_selftest_that_could_not_run_has_detected_nothing_and_the_check_still_runs(fake: Fake) -> None:
    result = fake("selftest raises", plan("gemm", selftest=True))
    assert [done.verdict for done in result.results] == [Verdict.PASS]
    (test,) = result.selftests
    assert (test.check, test.injected, test.detected) == ("gemm", False, False)
