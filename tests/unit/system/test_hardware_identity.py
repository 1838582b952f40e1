"""The identity of hardware with GPUs in MIG mode: what it says, what it refuses, what it calls a change."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.system.hardware_identity import UNNAMED, checked, difference, digest, identity, mig_layouts
from gpu_burnin.types import Gpu, MigInstance


def gpu(index: int, *profiles: str, mig: bool = True) -> Gpu:
    instances = tuple(MigInstance(f"MIG-{index}-{n}", profile, 16, 1) for n, profile in enumerate(profiles))
    return Gpu(index, f"GPU-{index}", "s", "", "", "", 0, "v", instances if mig else None)


def hardware(*gpus: Gpu) -> dict[str, Any]:
    return identity(gpus, "580.1", "6.1")


SEVEN = hardware(gpu(0, *["1g.10gb"] * 7), gpu(1, *["1g.10gb"] * 7))


def test_the_identity_has_the_layout_of_gpus_in_mig_mode_and_of_no_others() -> None:
    assert mig_layouts(SEVEN) == {"GPU-0": {"1g.10gb": 7}, "GPU-1": {"1g.10gb": 7}}
    assert checked(SEVEN) == SEVEN
    assert set(hardware(gpu(0, mig=False))) == {"gpus", "driver", "kernel"}, "as before: the hash stays the same"
    assert mig_layouts(hardware(gpu(0))) == {"GPU-0": {}}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (hardware(gpu(0, *["1g.10gb"] * 7), gpu(1, "3g.40gb")), "MIG instances of GPU-1 7 x 1g.10gb -> 1 x 3g.40gb"),
        (hardware(gpu(0, *["1g.10gb"] * 7), gpu(1)), "MIG instances of GPU-1 7 x 1g.10gb -> none"),
        (hardware(gpu(0, *["1g.10gb"] * 7), gpu(1, mig=False)), "MIG instances of GPU-1 7 x 1g.10gb -> MIG off"),
        (SEVEN, ""),
    ],
)
def test_another_layout_is_other_hardware(now: dict[str, Any], said: str) -> None:
    assert difference(SEVEN, now) == said
    assert (digest(SEVEN) == digest(now)) == (not said)


@pytest.mark.parametrize(
    "mig",
    [{}, [], "x", {"GPU-0": []}, {"GPU-0": {"1g.10gb": 0}}, {"GPU-0": {"1g.10gb": True}}, {"GPU-0": {"1g.10gb": 99}},
     {"GPU-0": {"a b": 1}}, {"GPU-0": {f"{n}g": 1 for n in range(17)}}, {"x" * 129: {}}, {"GPU-0": {"": 1}}],
)  # fmt: skip
def test_a_layout_of_another_form_is_refused_and_asks_for_nothing(mig: Any) -> None:
    with pytest.raises(ValueError, match=r"(?i)mig"):
        checked({**SEVEN, "mig": mig})
    assert mig_layouts({**SEVEN, "mig": mig}) == {}
    assert difference(SEVEN, {**SEVEN, "mig": mig}) == UNNAMED


@pytest.mark.parametrize("key", ["driver", "kernel"])
def test_half_a_character_is_refused_since_the_ledger_would_keep_another(key: str) -> None:
    hardware = {"gpus": [], "driver": "580", "kernel": "6.1"}
    assert checked(hardware) == hardware
    with pytest.raises(ValueError, match="surrogates"):
        checked({**hardware, key: "x\ud800"})
