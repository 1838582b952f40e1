"""What stands between the driver and a burn-in."""

from __future__ import annotations

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.telemetry import discover
from gpu_burnin.telemetry.discover import Found, choose_backend
from gpu_burnin.types import Gpu


@pytest.mark.parametrize(
    ("cuda", "extra"), [("13.0", "cuda13"), ("14.1", "cuda13"), ("12.8", "cuda12"), ("", "cuda12")]
)
def test_the_extra_that_brings_cupy_and_cuda_is_that_of_the_driver(
    cuda: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "find_spec", lambda _: None)
    found = Found((Gpu(0, "GPU-0", "", "", "", "", 0, ""),), simulated=False, cuda=cuda)
    with pytest.raises(GpuBurninError) as caught:
        choose_backend("auto", found)
    hint = f"pip install '.[{extra}]' in a checkout (of a release: 'FILE.whl[{extra}]') brings it with CUDA"
    assert hint in str(caught.value)
    assert caught.value.exit_code == 2


def test_who_has_no_gpu_is_sent_to_the_demo() -> None:
    with pytest.raises(GpuBurninError, match=r"not found; `gpu-burnin demo` shows the program without a GPU$"):
        choose_backend("auto", Found(error="libnvidia-ml.so.1 was not found"))


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (Found(error="NVML did not answer within 60 s"), 3),
        (Found(simulated=False), 3),
        (Found((Gpu(0, "GPU-0", "", "", "", "", 0, ""),)), 2),
    ],
)
@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_a_driver_that_is_not_there_is_no_mistake_of_who_asks(found: Found, code: int, asked: str) -> None:
    with pytest.raises(GpuBurninError) as caught:
        choose_backend(asked, found)
    assert caught.value.exit_code == code
