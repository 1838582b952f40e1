"""The burn-in's settings, read on the controller by what reads them on the nodes, before any host is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.preflight.placeholders import Finding
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_rules import RoleRule

from gpu_burnin.checks import CHECK_NAMES
from gpu_burnin.settings.config import Config
from gpu_burnin.settings.durations import parse_duration
from gpu_burnin.settings.options import Option, OptionError, options_of, read

ROLE = "gpu_burnin"
NEW, LONGEST = f"{ROLE}_extended_for_new", f"{ROLE}_extended_s"


def burnin_rules() -> tuple[RoleRule, ...]:
    """A rule for each setting that is an option of the role."""
    settings = {f"{ROLE}_{key}": one for key, one in options_of(Config).items() if one.role is not None}
    names = RoleRule((f"{ROLE}_checks",), f"{ROLE}_checks", _check_names)
    length = RoleRule((NEW, LONGEST), NEW, _new_is_no_longer)
    return (names, length, *(RoleRule((name,), name, _reader(name, one)) for name, one in settings.items()))


def _reader(name: str, one: Option) -> Callable[[Any], Iterable[Finding]]:
    """What the setting's reader refuses of a text; the role's argument_specs see to other types, and convert them."""

    def problem(document: Any, prefix: str) -> Iterable[Finding]:
        try:
            read(Config, document)
        except OptionError as error:
            said = str(error).removeprefix(f"{one.key}{prefix} ")
            yield f"{name}{prefix} {said}", f"correct {name}"

    def check(value: Any) -> Iterable[Finding]:
        if one.section is None:
            if isinstance(value, str) and one.kind is not None and one.kind.ansible == {"type": "str"}:
                yield from problem({one.key: value}, "")
        elif isinstance(value, Mapping):
            for key, part in value.items():
                if isinstance(part, str) and _is_text(one.section, str(key)):
                    yield from problem({one.key: {key: part}}, f".{key}")

    return check


def _new_is_no_longer(new: Any, longest: Any) -> Iterable[Finding]:
    """What a play waits for is made of the second: a node would be given up in the middle of its first run."""
    try:
        new_s, longest_s = parse_duration(new) if new else 0.0, float(longest)
    except (AttributeError, TypeError, ValueError):
        # Of another form: the rules above and the argument_specs say so.
        return
    if new_s > longest_s:
        yield (
            f"{NEW} is {new}, longer than {LONGEST} ({longest_s:g} s), by which plays and power waves are timed",
            f"raise {LONGEST} to {new_s:g}, or shorten {NEW}",
        )


def _is_text(section: type, key: str) -> bool:
    found = options_of(section).get(key)
    return found is not None and found.kind is not None and found.kind.ansible == {"type": "str"}


def _check_names(names: Any) -> Iterable[Finding]:
    """The checks that there are: a run refuses any other name."""
    listed = names.split(",") if isinstance(names, str) else names
    unknown = [str(name) for name in listed if name not in CHECK_NAMES] if isinstance(listed, list) else []
    if names and unknown:
        yield f"{ROLE}_checks names {', '.join(unknown)}, which is no check", f"choose from {', '.join(CHECK_NAMES)}"
