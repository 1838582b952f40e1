"""The story of a node, a pod or a job as text."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_burnin.fleet.why.entry import Entry, Source
from gpu_burnin.fleet.why.fold import for_people
from gpu_burnin.fleet.why.told import Story
from gpu_burnin.system.prose import STANDARD_WIDTH, short_uuids, table_with_text, wrap

# The newest entries that are shown; --all shows all.
_MOST_ROWS = 60
_LEAST_MESSAGE = 40
_MOST_NODES = 3
# Over what tests between nodes found of a job's nodes.
FABRIC = "Tests between nodes"


def render(story: Story, width: int = STANDARD_WIDTH, *, all_of_them: bool = False) -> str:
    """How it stands, the first cause and what followed from it, the time line, and what was not looked at.

    The time line is folded and has the newest alone, or `all_of_them`.
    """
    lines = wrap(short_uuids(story.stands), width, rest="  ")
    lines += [line for text in answer(story) for line in wrap(text, width, rest="  ")]
    shown = for_people(story.entries, all_of_them=all_of_them)
    if shown:
        left = 0 if all_of_them else max(0, len(shown) - _MOST_ROWS)
        lines += ["", "What happened (UTC; * led to it):"]
        lines += wrap(f"the {left:,} before are shown with --all", width, "  ", "  ") if left else []
        lines += _table(shown[left:], story, width)
    if story.log is not None:
        lines += ["", f"Last lines of {story.log.pod} (container {story.log.container}):"]
        lines += [f"  {line}" for line in story.log.lines]
    for title, sentences in (
        (f"{FABRIC}:", story.fabric),
        ("Clocks:", story.clocks),
        ("Not looked at:", story.missing),
    ):
        if sentences:
            lines += ["", title, *(line for text in sentences for line in wrap(text, width, "  - ", "    "))]
    return "\n".join(lines) + "\n"


def answer(story: Story) -> Iterator[str]:
    """Why, in sentences: the first cause, then what came of it."""
    chain = story.cause.chain
    if not chain:
        yield {
            "node": "Nothing took it out of service, as far back as its NodeAdmission and this time line go.",
            "pod": "No end of it is known.",
            "job": "It does not wait, and no end of a pod needs explaining, as far as is known.",
        }[story.kind]
        return
    effect, first = chain[-1], story.cause.first
    if (story.kind != "node" and first is not effect) or len(chain) > 1:
        yield f"To explain: {_line(effect)}."
    if first is None:
        yield "First cause: not known. Nothing that was looked at explains it."
    else:
        yield f"First cause: {_line(first)}."
    if story.cause.before is not None:
        yield f"Before it: {_line(story.cause.before)}. Nothing shows that it led to it."
    for entry in chain[1:-1]:
        yield f"Then: {_line(entry)}."
    if story.kind == "job" and (nodes := _nodes(story)):
        whose = "its node" if len(nodes) == 1 else "its nodes"
        yield f"All of {whose}: {', '.join(f'`muster why {one}`' for one in nodes)}."


def _nodes(story: Story) -> list[str]:
    """Nodes of which to ask next: those that the answer is about."""
    found = [entry.node for entry in story.cause.chain if entry.node]
    return [*dict.fromkeys((*found, *(story.waits.nodes if story.waits else ())))][:_MOST_NODES]


def by(entry: Entry) -> str:
    """Who says it."""
    return {
        Source.ADMISSION: "the admitter",
        Source.EVENT: "an event",
        Source.POD: "the pod's status",
        Source.JOB: "the job's status",
        Source.KUEUE: "Kueue",
        Source.AUDIT: "the audit log",
        Source.AGENT: "the node's agent",
        Source.REPORT: "the burn-in's report",
        Source.PLAY: "the history of plays",
    }[entry.source]


def time_of(entry: Entry) -> str:
    """Its time, to the second."""
    return f"{entry.at:%Y-%m-%d %H:%M:%S}"


def _line(entry: Entry) -> str:
    return f"{time_of(entry)}, by {by(entry)}: {short_uuids(entry.sentence).rstrip('.')}"


def _table(entries: list[Entry], story: Story, width: int) -> list[str]:
    chain = set(story.cause.chain)
    rows = [
        ("*" if entry in chain else " ", f"{entry.at:%m-%d %H:%M:%S}", str(entry.source), short_uuids(entry.sentence))
        for entry in entries
    ]
    return table_with_text(rows, width, indent="", least=_LEAST_MESSAGE)
