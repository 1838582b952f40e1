"""The story of a node, a pod or a job as one page that loads nothing."""

from __future__ import annotations

from gpu_burnin import __version__
from gpu_burnin.fleet.why.entry import Entry, What
from gpu_burnin.fleet.why.fold import for_people
from gpu_burnin.fleet.why.text import FABRIC, answer, by, time_of
from gpu_burnin.fleet.why.told import SCHEMA, Story
from gpu_burnin.report import html
from gpu_burnin.system.prose import short_uuids

_BAD = frozenset({What.ENDED, What.QUARANTINED, What.XID, What.FAULT, What.OUT_OF_MEMORY, What.LOST})


def render(story: Story, *, all_of_them: bool = False) -> str:
    """The page; its time line is folded, unless `all_of_them` are asked for."""
    return html.fill(
        "why.html.j2",
        story=story,
        worst="PASS" if not story.cause.chain else "FAIL" if story.cause.first else "INCONCLUSIVE",
        answer=[*answer(story)],
        chain=set(story.cause.chain),
        shown=for_people(story.entries, all_of_them=all_of_them),
        badge_of=badge_of,
        name_of=name_of,
        by=by,
        time_of=time_of,
        short_uuids=short_uuids,
        fabric_title=FABRIC,
        schema=SCHEMA,
        version=__version__,
    )


def badge_of(entry: Entry) -> str:
    """The verdict whose colour and sign an entry has; "" for one that explains nothing."""
    if entry.what in _BAD:
        return "FAIL"
    return "" if entry.what is What.TOLD else "WARNING"


def name_of(entry: Entry) -> str:
    """What a badge says. A cluster that is only observed quarantines no node, whatever was found."""
    return "finding" if entry.what is What.QUARANTINED else str(entry.what)
