"""What the agent remembers when it is killed or the node boots: a revocation under way, what it has seen and served."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_burnin.api.agent_note import Answer, Warned
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json, read_bytes, write_atomic

FILE = "watch.json"
# More are no news: the node is tested again for the first.
MOST_WARNINGS = 12


@dataclass(frozen=True)
class Pending:
    """A revocation that is not written to its end.

    `after_sequence` is the newest run when it was found, None where that could not be read.
    """

    code: str
    message: str
    after_sequence: int | None
    action: str = ""


@dataclass(frozen=True)
class Kept:
    """`boot_id` is the boot that all but the answer is of.

    `seen` are the newest kernel messages that were judged; `warnings` are by code and place; `uncorrected` the memory
    errors known of each GPU; `xids` how many came, by PCI address and class ("0000:1b:00.0 revoke"); `nvlinks`
    the most that each GPU had up. `again` is the id of a request that is not served once more when its burn-in ends
    with the agent, `hindered` that of one that was refused for what comes by itself.
    """

    boot_id: str
    answer: Answer | None = None
    pending: Pending | None = None
    seen: tuple[str, ...] = ()
    warnings: dict[str, Warned] = field(default_factory=dict)
    uncorrected: dict[str, int] = field(default_factory=dict)
    xids: dict[str, int] = field(default_factory=dict)
    nvlinks: dict[str, int] = field(default_factory=dict)
    again: str = ""
    hindered: str = ""


class Memory:
    """The kept state, on the disk before a change is acted upon."""

    def __init__(self, state_dir: Path, boot_id: str) -> None:
        self._path = state_dir / FILE
        self.kept = Kept(boot_id)
        self.problem = ""
        try:
            found = from_json(Kept, parse_json(read_bytes(self._path, follow=False)), tolerant=True)
            # A machine that went down during a burn-in does not begin it by itself.
            before = Kept(boot_id, found.answer, again=found.answer.id if found.answer is not None else "")
            self.kept = found if found.boot_id == boot_id else before
        except FileNotFoundError:
            pass
        except (OSError, Misfit, ValueError) as error:
            # What it forgets is asked and judged once more: that closes doors and opens none.
            self.problem = f"{self._path} cannot be read ({error}); it is written anew"

    def change(self, **changes: object) -> None:
        """Keep changed fields. Where the disk fails they hold in memory alone, and `problem` says so."""
        changed = replace(self.kept, **changes)  # type: ignore[arg-type]
        if changed == self.kept:
            return
        self.kept = changed
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self._path, canonical_json(to_json(changed)))
            self.problem = ""
        except OSError as error:
            self.problem = f"{self._path} cannot be written ({error.strerror}); make room or repair the disk"

    def warn(self, key: str, warned: Warned) -> bool:
        """Keep a warning, unless one of its key is kept; whether it is new."""
        if key in self.kept.warnings:
            return False
        others = dict(list(self.kept.warnings.items())[-(MOST_WARNINGS - 1) :])
        self.change(warnings={**others, key: warned})
        return True

    def forget(self, keys: set[str]) -> None:
        """Drop warnings."""
        self.change(warnings={key: value for key, value in self.kept.warnings.items() if key not in keys})
