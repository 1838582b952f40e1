"""Which XIDs were judged already: by this boot's runs, or by the agent before it was started again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from gpu_burnin.api import evidence
from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.store import Store
from gpu_burnin.node.watch.kept import Memory
from gpu_burnin.system.files import read_bytes
from gpu_burnin.telemetry.kmsg import SAME_LINE_US, XidEvent

_MOST_KEPT = 500


def by_runs(store: Store, boot_id: str) -> Sequence[tuple[str, int]] | None:
    """Text and time of the XIDs in the newest report of this boot; None where no run of this boot has a result."""
    # Here, because it loads the reports' room and is seldom needed.
    from gpu_burnin.node.report_head import read_parts
    from gpu_burnin.report.file_names import REPORT

    for run in reversed(store.runs()):
        try:
            statement = evidence.parse_statement(read_bytes(run.path / EVIDENCE, follow=False))
            if statement.boot_id != boot_id:
                return None
            telemetry = read_parts(run.path / REPORT, ("telemetry",)).telemetry
            return [(event.text, event.monotonic_us) for event in telemetry.kernel_log.events]
        except (OSError, GpuBurninError):
            continue  # a revocation, or a run that has left nothing
    return None


def is_known(event: XidEvent, reported: Iterable[tuple[str, int]], memory: Memory) -> bool:
    """Whether a run or the agent has judged this line. The sources may give one line times that differ a little."""
    return _key(event) in memory.kept.seen or any(
        text == event.text and abs(at_us - event.monotonic_us) <= SAME_LINE_US for text, at_us in reported
    )


def remember(memory: Memory, events: Iterable[XidEvent]) -> None:
    """These are judged."""
    keys = dict.fromkeys((*memory.kept.seen, *(_key(event) for event in events)))
    memory.change(seen=tuple(keys)[-_MOST_KEPT:])


def _key(event: XidEvent) -> str:
    return hashlib.sha256(f"{event.monotonic_us} {event.text}".encode()).hexdigest()[:12]
