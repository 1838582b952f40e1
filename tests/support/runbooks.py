"""The commands of the runbooks: what stands in their plain code blocks, and what each of them names."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/operations/*.md")))
# A block without a language holds commands and nothing else.
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
# What the shell itself does, and what copies or shows a file: nothing of the fleet.
SHELL = {"cat", "cd", "cp", "export", "ls", "source"}
GROUPED = {"gpu-burnin": ("fabric",), "muster": ("fabric", "image", "node")}


@dataclass(frozen=True)
class Command:
    """A line of a page."""

    page: str
    line: str

    @property
    def parts(self) -> list[list[str]]:
        """Its simple commands, as words."""
        line = re.sub(r"^(?:\w+=|eval )\"?\$\((.*?)\)\"?$", r"\1", self.line)
        loop = re.fullmatch(r"for \w+ in \S+; do echo \"\$\((.*)\)  \S+\"; done", line)
        words = shlex.split(loop[1] if loop else line)
        parts: list[list[str]] = [[]]
        for word in words:
            if word in ("&&", "|"):
                parts.append([])
            else:
                parts[-1].append(word)
        return parts

    @property
    def shape(self) -> str:
        """What the table names it by: without inventory, hosts and other values where the program knows its options."""
        for words in self.parts:
            if words[0] in GROUPED:
                return _of_ours(words)
            if words[0] == "ansible-playbook":
                return _of_playbook(words)
            if words[0] == "kubectl":
                return " ".join(words).replace("--kubeconfig STATE/kubeconfig/admin.kubeconfig ", "")
        return self.line


def commands(page: Path) -> list[Command]:
    """Every command of a page, without its comment; a line that ends with a backslash goes on."""
    found = []
    for block in (block for block in BLOCK.finditer(page.read_text()) if not block[1]):
        for line in textwrap.dedent(block[2]).replace("\\\n", " ").splitlines():
            command = re.sub(r"(^|\s)#\s.*", "", line).strip()
            if command:
                found.append(Command(page.name, re.sub(r" {3,}", " ", command)))
    return found


def runs_something(command: Command) -> bool:
    """Whether it does more than the shell's own."""
    return any(words[0] not in SHELL for words in command.parts)


def _of_ours(words: list[str]) -> str:
    number = 3 if words[1] in GROUPED[words[0]] else 2
    options = sorted({word for word in words[number:] if word.startswith("--")} - {"--kubeconfig"})
    return " ".join([*words[:number], *options])


def _of_playbook(words: list[str]) -> str:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "-i":
            next(rest)
        elif word == "-l":
            kept.append("-l")
            next(rest)
        elif word == "-e":
            name, _, value = next(rest).partition("=")
            kept += ["-e", f"{name}={value if value.isalpha() and value.islower() else ''}"]
        elif word != "-v":
            kept.append(word)
    return " ".join(kept)


def words_of(shape: str) -> list[str]:
    """What a test that runs a command of this shape has to name."""
    program, *rest = shape.split()
    if program in GROUPED:
        return rest
    if program == "make":
        return []
    if program == "ansible-playbook":
        return [re.sub("=.*", "", word) for word in rest if word not in ("-e", "-l")]
    if program in ("journalctl", "systemctl"):
        return units(rest)
    if rest[:1] == ["-m"]:
        return rest[1:2]
    return [Path(rest[-1] if ">" in rest else program).name]


def units(words: list[str]) -> list[str]:
    """Units of systemd among the words for systemctl or journalctl, without `.service`."""
    named = [word for word in words if re.fullmatch(r"[a-z][\w-]*-[\w.-]+", word)]
    return [word.removesuffix(".service") for word in named]
