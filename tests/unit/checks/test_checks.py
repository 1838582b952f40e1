"""The registry, and what all checks of a GPU need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.checks import CHECK_NAMES, REGISTRY
from gpu_burnin.checks.gemm import check as gemm
from gpu_burnin.checks.hbm import check as hbm
from gpu_burnin.device.choose import make_device
from gpu_burnin.device.port import DeviceError
from tests.support.engine_helpers import context


def test_the_registry_loads_checks_by_name() -> None:
    assert tuple(REGISTRY) == CHECK_NAMES
    assert REGISTRY["gemm"].name == "gemm"
    with pytest.raises(KeyError, match="choose from"):
        REGISTRY["no_such_check"]


def test_checks_without_device_are_an_error() -> None:
    for check in (gemm.Check(), hbm.Check()):
        with pytest.raises(DeviceError):
            check.run(replace(context(), device=None))
        assert check.selftest(replace(context(), device=None)) == ()


def test_unknown_device_is_an_error() -> None:
    with pytest.raises(DeviceError, match="choose cpu or cuda"):
        make_device("tpu")
