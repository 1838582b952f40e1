"""Numbers as a page for node_exporter's textfile collector: Prometheus' text exposition format 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

Sample: TypeAlias = tuple[Mapping[str, str], float | None]


class Family(NamedTuple):
    """One metric: its name after the prefix, `gauge` or `counter`, what it says, (labels, value) of each sample."""

    name: str
    kind: str
    text: str
    samples: Iterable[Sample]


def page(prefix: str, families: Iterable[Family]) -> str:
    """The page; `prefix` begins each name.

    A value that is not known or no number has no sample, and a family without one is left out.
    """
    lines: list[str] = []
    for name, kind, text, samples in families:
        # Two samples with the same labels would make the collector drop the whole file: the last one holds.
        values = {_labels(labels): value for labels, value in samples if value is not None and math.isfinite(value)}
        if values:
            lines += [f"# HELP {prefix}{name} {text}", f"# TYPE {prefix}{name} {kind}"]
            lines += [f"{prefix}{name}{labels} {_number(value)}" for labels, value in values.items()]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    """Backslash, quote and line feed, as the format wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1 << 53 else repr(float(value))
