"""Entries that come by the dozen whenever a kubelet starts, as one line for each time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from gpu_burnin.fleet.why.entry import Entry


def for_people(entries: Iterable[Entry], *, all_of_them: bool = False) -> list[Entry]:
    """What is shown: without what is for programs alone, and with routine folded; or all, as it is."""
    if all_of_them:
        return [*entries]
    return [*_folded(one for one in entries if not one.quiet)]


def _folded(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Routine entries that follow each other are one, which names them; a single one stays as it is."""
    for routine, run in groupby(entries, key=lambda one: one.routine):
        some = list(run)
        if not routine or len(some) == 1:
            yield from some
            continue
        reasons = Counter(one.message.partition(":")[0] for one in some)
        names = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in reasons.items())
        yield replace(some[0], message=f"{len(some)} of routine, to {some[-1].at:%H:%M:%S}: {names}")
