"""What is done, in one sentence that a person reads. Pure."""

from __future__ import annotations

from gpu_burnin.api.machine_power import Power
from gpu_burnin.scaler.model import (
    Act,
    Answer,
    Close,
    Failed,
    Observe,
    Reached,
    Reopen,
    SetWish,
    Switch,
)


def sentence_of(act: Act) -> str:
    """The act and why."""
    match act:
        case SetWish(power=None):
            return f"{act.machine}: leave it as it is: {act.why}"
        case SetWish():
            return f"{act.machine}: want it {act.power}: {act.why}"
        case Observe():
            return f"{act.machine}: ask its provider whether it is on"
        case Switch():
            return f"{act.machine}: switch its power {'on' if act.power is Power.ON else 'off, in order'}"
        case Close():
            return f"{act.machine}: keep new work away{', and have its pods leave' if act.leave else ''}: {act.why}"
        case Reopen():
            return f"{act.machine}: let new work come: {act.why}"
        case Reached():
            return f"{act.message}; record it"
        case Failed():
            return f"{act.message}; record it{', and keep it for a person' if act.held else ''}"
        case Answer():
            return f"{act.request}: tell it {act.verdict}: {act.message}"
