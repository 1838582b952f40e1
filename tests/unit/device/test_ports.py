"""The way from a device to the code that a package has for it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu_burnin.checks import CHECKS
from gpu_burnin.device.cpu import CpuDevice
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.port import DeviceError

PACKAGES = ("gpu_burnin.exact", *(f"gpu_burnin.checks.{name}" for name in CHECKS))
_LOADED = """
import json, sys
from gpu_burnin.checks import REGISTRY
from tests.support.engine_helpers import context
REGISTRY["pcie"].run(context())
print(json.dumps([name for name in sys.modules if name == "cupy" or name.endswith((".cpu", ".cuda"))]))
"""


def test_a_worker_loads_the_code_of_its_device_and_of_its_checks_alone() -> None:
    command = [sys.executable, "-c", _LOADED]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == {"gpu_burnin.device.cpu", "gpu_burnin.checks.pcie.cpu"}


def test_what_runs_on_a_gpu_runs_on_the_cpu_too() -> None:
    code = {kind: [name for name in PACKAGES if find_spec(f"{name}.{kind}")] for kind in ("cpu", "cuda")}
    assert code["cpu"] == code["cuda"] != []
    for package in code["cpu"]:
        assert type(CpuDevice().port(package)).__module__ == f"{package}.cpu"


def test_a_gpu_that_is_not_open_has_no_ports() -> None:
    with pytest.raises(DeviceError, match="not open"):
        CudaDevice().port("gpu_burnin.checks.pcie")
