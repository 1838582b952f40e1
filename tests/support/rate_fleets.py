"""Fleets whose rates are drawn from a seed, as points of the history of rates."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpu_burnin.fleet.baseline.frame import newest, read_names, weeks
from gpu_burnin.fleet.baseline.judge import Judged, judge
from gpu_burnin.fleet.baseline.points import Card, Point, Rate, Setting
from gpu_burnin.fleet.baseline.rates import DATABASE, FILE, Arrived, Taken, keep

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SETTING = Setting("standard", "580.95.05", "0.2.0", "0" * 12, "ACME G8", "")
# As the checks name them; the values are about those of an H200.
RATES = {
    Rate("gemm", f"gemm_{name}_throughput", "TFLOP/s"): value
    for name, value in (("fp64", 60.0), ("fp32", 50.0), ("tf32", 430.0), ("bf16", 810.0), ("fp16", 800.0),
                        ("int8", 1490.0), ("fp8", 1420.0))
} | {
    Rate("hbm", "hbm_rate", "B/s"): 4.3e12,
    **{Rate("pcie", name, "B/s"): 5.5e10 for name in ("h2d", "d2h", "duplex", "h2d_all", "d2h_all")},
    Rate("nvlink", "p2p", "B/s"): 3.9e11,
    Rate("nvlink", "p2p_slowest", "B/s"): 3.8e11,
    Rate("nccl", "all_reduce_busbw", "B/s"): 4.7e11,
    Rate("power", "mixed_bf16_throughput", "TFLOP/s"): 640.0,
}  # fmt: skip
Draw = Callable[[np.random.Generator, tuple[int, ...]], npt.NDArray[np.float64]]
# Healthy spreads of many shapes, each with a width of about one.
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "uniform": lambda rng, size: rng.uniform(-2, 2, size),
    "logistic": lambda rng, size: rng.logistic(scale=0.6, size=size),
    "laplace": lambda rng, size: rng.laplace(scale=0.8, size=size),
    "skewed to slow": lambda rng, size: -rng.exponential(size=size),
    "skewed to fast": lambda rng, size: rng.exponential(size=size),
    "gumbel to slow": lambda rng, size: -rng.gumbel(scale=0.8, size=size),
    "rounded": lambda rng, size: np.round(rng.normal(size=size) * 2) / 2,
    "all the same": lambda rng, size: np.zeros(size),
}


def name(number: int) -> str:
    """A host's name."""
    return f"gpu-{number:04d}"


@dataclass
class Fleet:
    """Hosts of alike GPUs. `spread` is the width of a GPU's own rates, `noise` that of its runs, in shares.

    A test may change `own` (hosts x GPUs x rates), the share by which each rate differs from the usual for good.
    """

    hosts: int
    gpus: int = 8
    spread: float = 0.005
    noise: float = 0.002
    shape: str = "normal"
    noise_shape: str = "normal"
    seed: int = 1
    rates: Sequence[Rate] = tuple(RATES)
    first: int = 0
    setting: Setting = SETTING
    slots: npt.NDArray[np.float64] | None = None
    rng: np.random.Generator = field(init=False)
    own: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.own = self.spread * SHAPES[self.shape](self.rng, (self.hosts, self.gpus, len(self.rates)))

    def card(self, host: int, gpu: int) -> Card:
        """A GPU's identity."""
        return Card(
            f"GPU-{self.first + host:08x}-0000-0000-0000-{gpu:012x}",
            "h200-sxm-141gb",
            "96.00",
            f"0000:{gpu + 1:02x}:00.0",
        )

    def points(self, at: datetime = NOW) -> list[Arrived]:
        """A run of each host."""
        usual = np.array([RATES[rate] for rate in self.rates])
        noise = self.noise * SHAPES[self.noise_shape](self.rng, self.own.shape)
        slots = np.zeros(self.gpus) if self.slots is None else self.slots
        values = usual * (1 + self.own) * (1 + noise) * (1 + slots[None, :, None])
        return [
            Arrived(
                f"{name(self.first + host)}/report.json", 1, int(at.timestamp()) * 10**9,
                Point(f"{at:%Y%m%dT%H%M%SZ}-{host:06d}", name(self.first + host), at, "", self.setting, {
                    **{
                        self.card(host, gpu): dict(zip(self.rates, values[host, gpu].tolist(), strict=True))
                        for gpu in range(self.gpus)
                    },
                }),
            )
            for host in range(self.hosts)
        ]  # fmt: skip


def kept(path: Path, *fleets: Fleet) -> Path:
    """A database with one run of each host of the fleets."""
    for fleet in fleets:
        keep(path, fleet.points(), NOW, Taken())
    return path


def kept_weekly(path: Path, fleet: Fleet, number: int, change: Callable[[int], None] = lambda week: None) -> Path:
    """A database with so many weekly runs, the last one now. `change` is called before each."""
    for week in range(number):
        change(week)
        keep(path, fleet.points(NOW - timedelta(weeks=number - 1 - week)), NOW, Taken())
    return path


def state_of(folder: Path, fleet: Fleet, number: int = 1, change: Callable[[int], None] = lambda week: None) -> Path:
    """A fleet's state with so many weekly runs, whose reports are known: files that have not changed are not read."""
    # The commands look by today's clock.
    now = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    folder.mkdir(exist_ok=True)
    for week in range(number):
        change(week)
        points = fleet.points(now - timedelta(weeks=number - 1 - week))
        keep(folder / FILE, points, now, Taken())
    for report in points:
        path = folder / "reports" / report.name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        os.utime(path, ns=(report.mtime_ns, report.mtime_ns))
    return folder


def judged(path: Path, **options: int) -> Judged:
    """What is said of a database."""
    with DATABASE.reading(path) as connection:
        names = read_names(connection)
        return judge(names, newest(connection, names), weeks(connection, names), **options)
