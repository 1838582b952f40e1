#!/usr/bin/env python3
"""Write what is generated from data: roles' READMEs and their list (from argument_specs), the reason codes, the
schema of what each check covers, the commands that no test runs, and what is made of the settings of gpu_burnin: parts
of the role gpu_burnin, and of the reference. Such a part stands in its file between two lines of comment; the rest is
written by hand.

With --check nothing is written; it fails and names every file that is not up to date.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.admission.decide import CODES
from gpu_burnin.api import evidence_codes
from gpu_burnin.hardware import DriverNeeds, DriverTable, SkuTable, load_drivers, load_skus
from gpu_burnin.settings.config import Config
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.settings.options import Option, Role, options_of
from tools.report_schema import coverage_schemas
from tools.sentences import laid_out

REPOSITORY = Path(__file__).resolve().parent.parent
# Ansible's markup (docs.ansible.com, "Ansible markup"); only V, O, RV and E know the backslash before a bracket.
_MARKUP = re.compile(r"\b(?:(V|O|RV|E)\(((?:[^\\)]|\\.)+)\)|(C|B|I|M|P|U|L|R)\(([^)]+)\))")

_BEGIN, _END = "Generated from gpu_burnin/settings by `make docs`.", "End of what is generated."
_WIDTH = 120


def main() -> int:
    """Write or check the generated pages."""
    wanted = dict(pages())
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} is not up to date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
        print(f"wrote {path.relative_to(REPOSITORY)}")
    return 0


def pages() -> Iterator[tuple[Path, str]]:
    """Each file that is generated, or has a generated part, as it should be."""
    parts = dict(settings_parts())
    yield from parts.items()
    paths = sorted(REPOSITORY.glob("roles/*/meta/argument_specs.yml"))
    texts = {path.parents[1].name: parts.get(path) or path.read_text() for path in paths}
    roles = {name: yaml.safe_load(text)["argument_specs"] for name, text in texts.items()}
    for name, specs in roles.items():
        yield REPOSITORY / "roles" / name / "README.md", laid_out(role_page(name, specs))
    yield REPOSITORY / "gpu_burnin/report/schema/coverage-v1.json", coverage_schemas()
    reasons = yaml.safe_load((REPOSITORY / "gpu_burnin/hardware/reasons.yaml").read_text())
    table = yaml.safe_load((REPOSITORY / "tests/unit/cli/runbook_commands.yml").read_text())
    reference = {
        "roles": roles_page(roles),
        "tuning": tuning_page(),
        "drivers": drivers_page(load_drivers(), load_skus()),
        "reasons": reasons_page(reasons, {**evidence_codes.CODES, **CODES}),
        "untested-commands": untested_page(table["nothing"]),
    }
    for name, page in reference.items():
        yield REPOSITORY / f"docs/reference/{name}.md", laid_out(page)


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


def untested_page(nothing: Mapping[str, Mapping[str, Any]]) -> str:
    """The commands of the pages that no test runs, by the reason."""
    lines = [
        "# Commands that no test runs",
        "",
        "Generated from `tests/unit/cli/runbook_commands.yml` by `make docs`.",
        "Tests run every other command of the README and of the runbooks. That none runs one of these does not mean",
        "that it fails: after each reason stands what is tested in its place. Names and values are left out.",
        "",
    ]
    for reason, untested in nothing.items():
        lines += [f"## {reason[0].upper()}{reason[1:]}", "", untested["instead"], ""]
        lines += [*(f"- `{shape}`" for shape in untested["commands"]), ""]
    return "\n".join(lines)


def drivers_page(drivers: DriverTable, skus: SkuTable) -> str:
    """The reference of drivers: what each architecture, each model that differs, and each CUDA version needs."""

    def row(name: str, needs: DriverNeeds) -> str:
        last = f"R{needs.until_branch}" if needs.until_branch else ""
        return f"| {name} | {needs.modules} | {needs.since_driver} | {last} | {needs.source} |"

    architectures = [row(one.name, one.driver) for one in drivers.architectures.values()]
    models = [row(sku.name, sku.driver) for sku in skus.skus.values() if sku.driver]
    head = ["| | kernel modules | first driver | last branch | source |", "|---|---|---|---|---|"]
    return "\n".join(
        [
            "# Drivers",
            "",
            "Generated from `gpu_burnin/hardware/drivers.yaml` and `skus.yaml` by `make docs`.",
            "The GPU's PCI id tells its architecture, never its name. Where either kind of kernel modules works,",
            "Muster takes the open ones. Matrix: CUDA Toolkit, Driver, and Architecture Matrix, in the documentation",
            "of NVIDIA's data center drivers.",
            "It is what NVIDIA says: no GPU was tried.",
            "",
            *head,
            *architectures,
            "",
            "Models that need something else than their architecture:",
            "",
            *head,
            *models,
            "",
            "The burn-in's CUDA libraries (`gpu_burnin_cuda`) need at least:",
            "",
            "| CUDA | driver |",
            "|---|---|",
            *(f"| {major} | {version} |" for major, version in drivers.cuda.items()),
            "",
            f"Branches that exist: {', '.join(map(str, drivers.branches))}. A newer one than these is not refused.",
            "",
            f"Oldest kernel: {drivers.kernel}.",
            "",
        ]
    )


def tuning_page() -> str:
    """The reference of the role node_tuning: each value with its reason and its source."""
    sys.path.insert(0, str(REPOSITORY / "collections"))
    table = importlib.import_module("ansible_collections.muster.fleet.plugins.module_utils.tuning.table")
    profiles = [profile for profile in table.PROFILES if profile != table.NONE]
    lines = [
        "# Tuning",
        "",
        "What the role [node_tuning](../../roles/node_tuning/README.md) sets on a node, and why.",
        "`node_tuning_profile` chooses the column; `node_tuning_values` changes single values by their names, `leave`",
        "leaves one alone.",
        "Generated from the role's table by `make docs`.",
        "",
        f"| setting | value | {' | '.join(profiles)} | why | source |",
        f"|---|---|{'---|' * len(profiles)}---|---|",
    ]
    for setting in table.SETTINGS:
        marks = " | ".join("yes" if profile in setting.profiles else "" for profile in profiles)
        lines.append(f"| `{setting.name}` | `{setting.value}` | {marks} | {setting.reason} | {setting.source} |")
    lines += [
        "",
        "Sysctl values, governor, huge pages and limits take effect at once. A service that runs keeps its limits",
        "until it is restarted, and a loaded nouveau goes with the next reboot: the task warns of both. It also warns",
        "of a file that wins over its own at the next boot, of a GPU whose IOMMU group translates, and of PCIe switch",
        "ports that redirect (ACS).",
        "",
        "In containers as hosts (`node_tuning_shared_kernel`) only what each has of its own is set: "
        + ", ".join(f"`{setting.name}`" for setting in table.SETTINGS if setting.per_namespace)
        + ".",
        "The task names the rest in `node_tuning_found.not_set`.",
    ]
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


def settings_parts(repository: Path = REPOSITORY) -> Iterator[tuple[Path, str]]:
    """The files of which a part is generated from gpu_burnin/settings, as they should be."""
    role, reference = repository / "roles/gpu_burnin", repository / "docs/reference"
    yield _with(role / "meta/argument_specs.yml", "      # ", [*_specs(options_of(Config))])
    yield _with(role / "defaults/main.yml", "# ", [*_defaults(options_of(Config))])
    yield _with(role / "vars/main.yml", "# ", ["__gpu_burnin_config:", *_host_config(options_of(Config), "  ")])
    yield _with(reference / "configuration.md", "<!-- ", ["", *_table(), ""], " -->")
    yield _with(reference / "expectations.md", "<!-- ", ["", *_expectations(), ""], " -->")


def _with(path: Path, before: str, lines: list[str], after: str = "") -> tuple[Path, str]:
    begin, end = f"{before}{_BEGIN}{after}\n", f"{before}{_END}{after}\n"
    text = path.read_text()
    head, found, rest = text.partition(begin)
    _, also, tail = rest.partition(end)
    if not (found and also):
        raise ValueError(f"{path} has no lines {begin.strip()!r} and {end.strip()!r}")
    return path, head + begin + "".join(f"{line}\n" for line in lines) + end + tail


def _variables(settings: dict[str, Option]) -> Iterator[tuple[str, Option, Role]]:
    """The variables of the role; those of a section that is none itself come one by one."""
    for key, one in settings.items():
        if one.role is not None and one.role.variable is not None:
            yield one.role.variable or f"gpu_burnin_{key}", one, one.role
        elif one.section is not None:
            yield from _variables(options_of(one.section))


def _specs(settings: dict[str, Option]) -> Iterator[str]:
    for variable, one, role in _variables(settings):
        yield f"      {variable}:"
        yield from _spec(one, "        ", [f"default: {_flow(role.default)}"])
        if one.section is not None:
            yield "        options:"
            for key, inner in options_of(one.section).items():
                yield f"          {key}:"
                yield from _spec(inner, "            ", [])


def _spec(one: Option, indent: str, last: list[str]) -> Iterator[str]:
    yield f"{indent}description: >-"
    yield from textwrap.wrap(one.help, _WIDTH, initial_indent=f"{indent}  ", subsequent_indent=f"{indent}  ",
                             break_on_hyphens=False)  # fmt: skip
    for name, value in (one.kind.ansible if one.kind else {"type": "dict"}).items():
        yield f"{indent}{name}: {_flow(value)}"
    yield from (f"{indent}{line}" for line in last)


def _defaults(settings: dict[str, Option]) -> Iterator[str]:
    return (f"{variable}: {_flow(role.default)}" for variable, _, role in _variables(settings))


def _host_config(settings: dict[str, Option], indent: str) -> Iterator[str]:
    """The host's file as the role writes it: each key that it sets, with its variable or a fixed value."""
    for key, one in settings.items():
        if one.role is not None:
            variable = one.role.variable or f"gpu_burnin_{key}"
            yield f"{indent}{key}: {_flow(one.role.value or _value(variable, one, one.role))}"
        elif one.section is not None:
            yield f"{indent}{key}:"
            yield from _host_config(options_of(one.section), f"{indent}  ")


def _value(variable: str, one: Option, role: Role) -> str:
    if one.kind is not None and one.kind.name == "flag":
        return f"{{{{ {variable} | bool }}}}"
    may_be_empty = role.default in ("", []) or "else ''" in str(role.default)
    return f"{{{{ {variable} or None }}}}" if may_be_empty else f"{{{{ {variable} }}}}"


def _flow(value: Any) -> str:
    """A value in YAML on one line: words bare, all else as JSON, which is YAML."""
    if isinstance(value, str) and re.fullmatch(r"[a-z][a-z_]*", value) and value not in ("true", "false", "null"):
        return value
    if isinstance(value, list):
        return f"[{', '.join(_flow(item) for item in value)}]"
    return json.dumps(value)


def _table() -> Iterator[str]:
    yield "| key | value | default | role `gpu_burnin` | command line | meaning |"
    yield "|---|---|---|---|---|---|"
    yield from _setting_rows(options_of(Config), "")


def _setting_rows(settings: dict[str, Option], parent: str) -> Iterator[str]:
    for key, one in settings.items():
        variable = "" if one.role is None else _set_by(key, one.role)
        flag = f"`{one.flag.names[0]}`" if one.flag else "`--expect`" if one.section is Expectations else ""
        default = f"`{one.default_text}`" if one.default_text else ""
        value = one.kind.wanted.replace("|", "\\|") if one.kind else "a mapping"
        yield f"| `{parent}{key}` | {value} | {default} | {variable} | {flag} | {markdown(one.help)} |"
        if one.section is not None:
            yield from _setting_rows(options_of(one.section), f"{parent}{key}.")


def _set_by(key: str, role: Role) -> str:
    return f"always `{_flow(role.value)}`" if role.variable is None else f"`{role.variable or f'gpu_burnin_{key}'}`"


def _expectations() -> Iterator[str]:
    yield "| example | meaning | code when it differs |"
    yield "|---|---|---|"
    for key, one in options_of(Expectations).items():
        yield f"| `{key}={one.example}` | {markdown(one.help)} | `{one.code}` |"


if __name__ == "__main__":
    sys.exit(main())
