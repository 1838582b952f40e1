"""Modes of the GPUs as declared state: what differs, what sets it, and what takes effect only after a reboot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ansible_collections.muster.fleet.plugins.module_utils.nvidia.nvml import Gpu

UNIT = "muster-gpu-settings.service"
_UNSUPPORTED = "unsupported"
# NVML gives milliwatts; a limit that was set is what it says.
_SAME_W = 0.5


@dataclass(frozen=True)
class Settings:
    """Modes for all GPUs of a host; ECC and persistence are always on.

    `power_limit_w` in watts; None: each GPU's own.
    """

    mig: bool = False
    power_limit_w: float | None = None


@dataclass(frozen=True)
class Difference:
    """What differs on one GPU. `command` sets it; without one it needs `reboot`, or cannot be had at all."""

    what: str
    command: tuple[str, ...] = ()
    reboot: bool = False


def differences(gpus: Iterable[Gpu], settings: Settings) -> tuple[Difference, ...]:
    """What is not as declared, GPU by GPU; a mode that could not be read differs from none."""
    return tuple(one for gpu in gpus for one in _of_gpu(gpu, settings))


def _of_gpu(gpu: Gpu, settings: Settings) -> Iterable[Difference]:
    name = gpu.pci or gpu.uuid or "a GPU"

    def set_by(what: str, *words: str) -> Difference:
        return Difference(what, ("nvidia-smi", "-i", gpu.uuid or gpu.pci or "", *words))

    if gpu.persistence is False:
        yield set_by(f"persistence of {name} is off", "-pm", "1")
    if gpu.ecc_pending == "off":
        yield set_by(f"ECC of {name} is off from its next reset on", "-e", "1")
    elif gpu.ecc == "off" and gpu.ecc_pending == "on":
        yield Difference(f"ECC of {name} is off until its next reset", reboot=True)
    mig = "on" if settings.mig else "off"
    if gpu.mig_pending == _UNSUPPORTED and settings.mig:
        yield Difference(f"{name} has no MIG; take gpu_burnin_expect.mig away from this host")
    elif gpu.mig_pending in ("on", "off") and gpu.mig_pending != mig:
        yield set_by(f"MIG of {name} is {gpu.mig_pending} and should be {mig}", "-mig", "1" if settings.mig else "0")
    elif gpu.mig in ("on", "off") and gpu.mig != mig:
        yield Difference(f"MIG of {name} is {gpu.mig} until its next reset", reboot=True)
    wanted = settings.power_limit_w
    if wanted is not None and gpu.power_limit_w is not None and abs(gpu.power_limit_w - wanted) > _SAME_W:
        yield set_by(
            f"the power limit of {name} is {gpu.power_limit_w:g} W and should be {wanted:g} W", "-pl", f"{wanted:g}"
        )


def unit(settings: Settings) -> str:
    """A unit that sets at each boot what the driver forgets; empty when nothing is declared."""
    words = (["-mig 1"] if settings.mig else []) + (
        [f"-pl {settings.power_limit_w:g}"] if settings.power_limit_w is not None else []
    )
    if not words:
        return ""
    commands = "".join(f"ExecStart=/usr/bin/nvidia-smi {one}\n" for one in words)
    return (
        "# Managed by Muster (role nvidia_driver).\n[Unit]\nDescription=Settings of the GPUs\n"
        "After=nvidia-persistenced.service\nBefore=gpu-burnin-boot.service kubelet.service\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\n{commands}\n[Install]\nWantedBy=multi-user.target\n"
    )
