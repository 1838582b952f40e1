"""Completion in bash, which takes words apart at colons."""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_COLON = ":"


def use_own_bash() -> None:
    """Have bash's questions answered by the class below."""
    add_completion_class(Bash)


class Bash(BashComplete):
    """Bash takes words apart at colons (COMP_WORDBREAKS), as in gemm:bitflip, and replaces what is behind the last."""

    # What stands before the last colon of the word that is typed: bash keeps it.
    _kept = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is typed, and that one, with what bash took apart put together again."""
        words, current = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        whole: list[str] = []
        for word in words[1 : current + 1]:
            if whole and (not word.strip(_COLON) or whole[-1].endswith(_COLON)):
                whole[-1] += word
                self._kept = whole[-1][: whole[-1].rindex(_COLON) + 1]
            else:
                whole.append(word)
                self._kept = ""
        if current >= len(words):  # the word that is typed is empty yet
            self._kept = ""
            return whole, ""
        return whole[:-1], whole[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """What comes behind that which bash keeps."""
        item.value = item.value.removeprefix(self._kept)
        return super().format_completion(item)
