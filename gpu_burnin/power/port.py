"""What a provider of power does, whatever is behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpu_burnin.errors import GpuBurninError


class PowerError(GpuBurninError):
    """A provider that refuses, does not answer, or does not do as it is told; one sentence that names the machine."""


@dataclass(frozen=True)
class Target:
    """The machine that is meant: where its BMC is, which machine has to answer there, and what a program is given."""

    name: str
    address: str = ""
    system: str = ""
    uuid: str = ""
    serial: str = ""
    model: str = ""
    gpus: int = 0
    place: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Clock:
    """Time as the waiting sees it."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Provider(Protocol):
    """One way to switch machines. Every order may be given twice. All methods raise PowerError."""

    def is_on(self, target: Target) -> bool:
        """Whether its power is on now."""

    def turn_on(self, target: Target) -> None:
        """Have its power on; returns when the provider shows that it is."""

    def turn_off(self, target: Target) -> None:
        """Have its operating system end and its power off; returns when the provider shows that it is."""
