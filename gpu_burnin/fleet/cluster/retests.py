"""Which idle nodes are asked for a test, drawn at random; the asking is asks.py's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime

from gpu_burnin.admission.client import KubeApi, admissions_path
from gpu_burnin.admission.decide.words import active
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, RecordError, State, parse


def read(api: KubeApi, names: Names) -> tuple[list[NodeAdmission], list[str]]:
    """All NodeAdmissions, and a sentence for each that cannot be read. Raises ApiError."""
    found, problems = [], []
    for item in api.items(admissions_path(names), "list the NodeAdmissions"):
        try:
            found.append(parse(item))
        except RecordError as error:
            problems.append(str(error))
    return found, problems


def may_be_asked(admission: NodeAdmission, now: datetime) -> bool:
    """Whether the node is ready, was idle when the admitter looked last, and nobody asks for something already."""
    spec, status = admission.spec, admission.status
    asked = any(active(ask, now) is not None for ask in (spec.hold, spec.quarantine, spec.repair))
    waiting = status.request is not None or (spec.retest is not None and spec.retest.since != status.retested)
    idle = status.use is not None and not status.use.busy
    return status.state is State.READY and idle and not asked and not waiting


def draw(admissions: Sequence[NodeAdmission], share: float, rng: random.Random, now: datetime) -> list[NodeAdmission]:
    """That share of the fleet, at least one node, drawn from those that may be asked, in the order of the draw."""
    idle = sorted((one for one in admissions if may_be_asked(one, now)), key=lambda item: item.name)
    most = max(1, round(share * len(admissions))) if share else 0
    return rng.sample(idle, min(most, len(idle)))
