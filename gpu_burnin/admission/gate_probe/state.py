"""What the probe keeps from one look to the next: how far the audit log was read, and what was counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_burnin.admission.gate_probe.audit import TRUSTED, Found, Position
from gpu_burnin.system.files import parse_json, read_text, write_atomic

FILE = "state.json"


@dataclass(frozen=True)
class State:
    """Counts since the probe was installed; times are seconds since 1970, 0 for never."""

    position: Position | None = None
    impersonations: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TRUSTED, 0))
    break_glass: int = 0
    gaps: int = 0
    gate_checked_s: float = 0.0
    audit_read_s: float = 0.0

    def counted(self, found: Found, now_s: float) -> State:
        """With what was new in the log."""
        impersonations = dict(self.impersonations)
        for use in found.uses:
            if use.trusted:
                impersonations[use.trusted] += 1
        return replace(
            self,
            position=found.position,
            impersonations=impersonations,
            break_glass=self.break_glass + sum(not use.trusted for use in found.uses),
            gaps=self.gaps + found.gaps,
            audit_read_s=now_s,
        )


def read(folder: Path) -> State:
    """What was kept. The first look, and one whose file was lost or damaged, begins anew: all of the present log."""
    try:
        return _state(parse_json(read_text(folder / FILE)))
    except (OSError, ValueError, KeyError, TypeError):
        return State()


def write(folder: Path, state: State) -> None:
    """Keep it. Raises OSError."""
    write_atomic(folder / FILE, json.dumps(asdict(state)).encode())


def _state(document: Any) -> State:
    position = document["position"]
    counts = {name: int(document["impersonations"].get(name, 0)) for name in TRUSTED}
    return State(
        None if position is None else Position(**position),
        counts,
        int(document["break_glass"]),
        int(document["gaps"]),
        float(document["gate_checked_s"]),
        float(document["audit_read_s"]),
    )
