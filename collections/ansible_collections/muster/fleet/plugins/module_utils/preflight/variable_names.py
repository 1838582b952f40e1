"""Which name a misspelt variable meant: near misses of the names that Muster and Ansible know, and nothing else.

A site's own variables are welcome, so a name is a near miss only when a slip of the hand explains it: words run
together or split, or a letter or two that are wrong, missing, too many or swapped. Another word is none (cpu for gpu).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

SLIPS_MAX = 2
NO_SLIP = SLIPS_MAX + 1
# Letters of a word that bears two slips, and of a name so short that only swapped letters tell it (pki_dir, api_dir).
LONG_WORD = 6
SHORT_NAME = 7
# One letter away from a word of Muster's, and no slip.
OTHER_WORDS = frozenset(
    {
        "app",
        "apt",
        "cpu",
        "cube",
        "dnf",
        "dpu",
        "mode",
        "npu",
        "ntp",
        "pad",
        "pip",
        "pkg",
        "ptp",
        "ssh",
        "tile",
        "tpu",
        "xpu",
    }
)

Words = tuple[str, ...]


class KnownNames:
    """Names that mean something, to compare others with. Each name is compared once."""

    def __init__(self, names: Iterable[str]) -> None:
        self._words = {name: words_of(name) for name in sorted(names)}
        self.meant_by = functools.cache(self._meant_by)

    def _meant_by(self, name: str) -> str:
        """The known name that `name` is a slip of, or nothing. A known name is none."""
        if name in self._words:
            return ""
        words = words_of(name)
        nearest = min(self._words, key=lambda known: distance(words, self._words[known]), default="")
        return nearest if nearest and distance(words, self._words[nearest]) <= SLIPS_MAX else ""


@functools.cache
def words_of(name: str) -> Words:
    """The words of a name in lower case, however they are joined: `kubelet-max_pods` has three."""
    return tuple(word for word in name.lower().replace("-", "_").split("_") if word)


def distance(words: Words, known: Words) -> int:
    """Slips that make `words` out of `known`; NO_SLIP when it is another name."""
    joined, wanted = "".join(words), "".join(known)
    if joined == wanted:
        return 0
    short = min(len(joined), len(wanted)) <= SHORT_NAME
    if (short and len(joined) != len(wanted)) or _digits(joined) != _digits(wanted):
        return NO_SLIP
    if len(words) != len(known):
        # Words run together or split, and one letter missing, too many or swapped.
        found = NO_SLIP if short else slips(joined, wanted, 1, may_replace=False)
        return found if found <= 1 else NO_SLIP
    total = 0
    for one, other in zip(words, known, strict=True):
        most = SLIPS_MAX if min(len(one), len(other)) >= LONG_WORD else 1
        found = slips(one, other, most, may_replace=not short)
        total += NO_SLIP if found > most or (found and one in OTHER_WORDS) else found
    return min(total, NO_SLIP)


def slips(one: str, other: str, most: int, *, may_replace: bool = True) -> int:
    """Letters wrong, missing, too many or swapped with their neighbour between two words; `most + 1` for any more.

    The distance of Damerau and Levenshtein in its restricted form (optimal string alignment). Without `may_replace` a
    wrong letter counts as two slips, one missing and one too many.
    """
    if one == other or abs(len(one) - len(other)) > most:
        return 0 if one == other else most + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            replaced = last[j - 1] + (0 if letter == wanted else 1 if may_replace else 2)
            best = min(last[j] + 1, row[j - 1] + 1, replaced)
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        if min(row) > most:
            return most + 1
        before, last = last, row
    return min(last[-1], most + 1)


def _digits(text: str) -> str:
    return "".join(letter for letter in text if letter.isdigit())
