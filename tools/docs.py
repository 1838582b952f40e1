#!/usr/bin/env python3
"""Write what is generated from data: roles' READMEs and their list (from argument_specs), and the reason codes.

With --check nothing is written; it fails and names every file that is not up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.admission import node
from gpu_burnin.node import evidence

REPOSITORY = Path(__file__).resolve().parent.parent
# Ansible's markup (docs.ansible.com, "Ansible markup"); only V, O, RV and E know the backslash before a bracket.
_MARKUP = re.compile(r"\b(?:(V|O|RV|E)\(((?:[^\\)]|\\.)+)\)|(C|B|I|M|P|U|L|R)\(([^)]+)\))")


def main() -> int:
    """Write or check the generated pages."""
    pages = dict(_pages())
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} is not up to date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path])
        print(f"wrote {path.relative_to(REPOSITORY)}")
    return 0


def _pages() -> Iterator[tuple[Path, str]]:
    paths = sorted(REPOSITORY.glob("roles/*/meta/argument_specs.yml"))
    roles = {path.parents[1].name: yaml.safe_load(path.read_text())["argument_specs"] for path in paths}
    for name, specs in roles.items():
        yield REPOSITORY / "roles" / name / "README.md", role_page(name, specs)
    yield REPOSITORY / "docs/reference/roles.md", roles_page(roles)
    reasons = yaml.safe_load((REPOSITORY / "gpu_burnin/hardware/reasons.yaml").read_text())
    yield REPOSITORY / "docs/reference/reasons.md", reasons_page(reasons, {**evidence.CODES, **node.CODES})


def role_page(name: str, specs: Mapping[str, Any]) -> str:
    """The README of a role: what it does and its variables, from its argument_specs."""
    lines = [f"# {name}", "", "Generated from `meta/argument_specs.yml` by `make docs`; edit that file.", ""]
    for entry, spec in specs.items():
        if entry != "main":
            lines += [f"## Entry point `{entry}`", ""]
        lines += [markdown(_text(spec.get("short_description", ""))), ""]
        if spec.get("description"):
            lines += [markdown(_text(spec["description"])), ""]
        rows = list(_rows(spec.get("options") or {}))
        if rows:
            lines += ["| variable | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def roles_page(roles: Mapping[str, Mapping[str, Any]]) -> str:
    """The list of all roles: what each does, in the words of its first entry point."""
    lines = ["# Roles", "", "Generated from each role's `meta/argument_specs.yml` by `make docs`.", ""]
    lines += ["| role | what it does |", "|---|---|"]
    for name, specs in roles.items():
        first = next(iter(specs.values()))
        lines.append(f"| [{name}](../../roles/{name}/README.md) | {markdown(_text(first['short_description']))} |")
    return "\n".join([*lines, ""])


def reasons_page(reasons: Mapping[str, Any], admission: Mapping[str, tuple[str, str]]) -> str:
    """The reference of all reason codes: the burn-in's, and the admitter's with (meaning, what to do)."""
    lines = [
        "# Reason codes",
        "",
        "Generated from the package's data by `make docs`. `gpu-burnin explain CODE` prints the same.",
        "",
        "## Of the burn-in",
        "",
        "| code | severity | action | meaning | what to do |",
        "|---|---|---|---|---|",
    ]
    for code, reason in sorted(reasons.items()):
        fields = (reason["severity"], reason["action"], _text(reason["summary"]), _text(reason["what_to_do"]))
        lines.append(f"| `{code}` | " + " | ".join(fields) + " |")
    lines += ["", "## Of the admission (reason of the condition GPUVerified)", ""]
    lines += ["| code | meaning | what to do |", "|---|---|---|"]
    lines += [f"| `{code}` | {_text(what)} | {_text(to_do)} |" for code, (what, to_do) in sorted(admission.items())]
    return "\n".join([*lines, ""])


def markdown(text: str) -> str:
    """Ansible's markup as Markdown."""
    return _MARKUP.sub(_as_markdown, text)


def _as_markdown(found: re.Match[str]) -> str:
    kind, content = found[1] or found[3], found[4] or re.sub(r"\\(.)", r"\1", found[2] or "")
    text, _, target = (part.strip() for part in content.partition(","))
    if kind in ("O", "RV"):
        # Of another plugin: fully.qualified.name#type:option.
        return f"`{content.rpartition(':')[2] if '#' in content else content}`"
    if kind in ("M", "P"):
        return f"`{content.partition('#')[0]}`"
    forms = {"B": f"**{content}**", "I": f"*{content}*", "U": f"<{content}>", "L": f"[{text}]({target})", "R": text}
    return forms.get(kind, f"`{content}`")


def _rows(options: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    """A line for each option and, below it, for each of its suboptions."""
    for option, details in options.items():
        yield _row(f"{parent}{option}", details)
        inner = "[]." if details.get("type") == "list" else "."
        yield from _rows(details.get("options") or {}, f"{parent}{option}{inner}")


def _row(option: str, details: Mapping[str, Any]) -> str:
    kind = details.get("type", "str")
    if kind == "list" and "elements" in details:
        kind = f"list of {details['elements']}"
    value = str(details.get("default", "")).replace("|", "\\|")
    default = "required" if details.get("required") else f"`{value}`" if "default" in details else ""
    meaning = markdown(_text(details.get("description", "")))
    if "choices" in details:
        meaning += " One of " + ", ".join(f"`{choice}`" for choice in details["choices"]) + "."
    return f"| `{option}` | {kind} | {default} | {meaning} |".replace("\n", " ")


def _text(value: str | list[str]) -> str:
    """Specs write prose as a string or a list of sentences."""
    return " ".join((" ".join(value) if isinstance(value, list) else value).split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
