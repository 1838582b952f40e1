"""What the operator expects of this node: one section `expect`, in the configuration and on the command line.

The model's data, and what the node shows, decide the rest (telemetry.node_links). Standard library
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from gpu_burnin.settings.options import (
    FLAG,
    WATTS,
    Kind,
    OptionError,
    known_option,
    option,
    options_of,
    read,
    whole,
    word,
)

if TYPE_CHECKING:
    from gpu_burnin.types import JSON

# The key in the options of a plan, and of the configuration.
KEY = "expect"


def _is_word(value: str) -> bool:
    return value.isprintable() and value == value.strip()


def _is_version(value: str) -> bool:
    return all(part.isascii() and part.isdecimal() for part in value.split("."))


def _is_key(value: str) -> bool:
    return value.isascii() and value[0].isalnum() and all(one.isalnum() or one in "-._" for one in value)


def _version(example: str, fits: Callable[[str], bool]) -> Kind:
    # Without quotes YAML reads 2.28 as a number.
    return word(f"a version in quotes, such as '{example}'", fits)


# No machine has a million GPUs or links.
_MOST = 1_000_000


@dataclass(frozen=True)
class Expectations:
    """What this node should look like. None: not set."""

    gpus: int | None = option(
        whole(1, _MOST),
        "Number of GPUs that the host must have. Set it; without it, those on the PCI bus count.",
        example="8",
        code="GPU_COUNT",
    )
    model: str | None = option(
        word("a key of gpu_burnin/hardware/skus.yaml, such as h100-sxm5-80gb", _is_key),
        "Model that each GPU must be, by its PCI id: a key of C(gpu_burnin/hardware/skus.yaml), such as "
        "C(h100-sxm5-80gb). Without it, any that is known. Teams ask for nodes of a model by it.",
        example="h100-sxm5-80gb",
        code="GPU_MODEL",
    )
    nvlink_links: int | None = option(
        whole(0, _MOST),
        "Active NVLinks that each GPU must have; 0 for a machine without NVLink, or without its bridges. Without it, "
        "the node's shape decides.",
        example="0",
        code="NVLINK_DOWN",
    )
    mig: bool | None = option(
        FLAG, "Whether MIG mode must be on. Without it, MIG must be off.", example="true", code="MIG_MISMATCH"
    )
    power_limit_w: float | None = option(
        WATTS,
        "Power limit of each GPU, in watts. Without it, the GPU's own. Under a lower limit no floor judges the rates "
        "that need full power.",
        example="600",
        code="POWER_LIMIT",
    )
    driver_version: str | None = option(
        _version("580.95.05", _is_version),
        "Version that driver and GSP firmware must have, such as C(580.95.05). Without it, the same on all GPUs.",
        example="580.95.05",
        code="DRIVER_MIXED",
    )
    vbios: str | None = option(
        _version("96.00.89.00.01", _is_word),
        "Version that the VBIOS of each GPU must have. Without it, the same on all GPUs of a model.",
        example="96.00.89.00.01",
        code="VBIOS_MIXED",
    )
    nccl: str | None = option(
        _version("2.28.3", _is_version),
        "Version that NCCL must have, such as C(2.28.3). Without it, the version of its package.",
        example="2.28.3",
        code="NCCL_VERSION",
    )

    def to_json(self) -> dict[str, JSON]:
        """The keys that are set, as they travel in the options of a plan and in the report."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def summary(self) -> str:
        """The keys that are set, for people; "" when there are none."""
        return summary(self.to_json())

    def over(self, other: Expectations) -> Expectations:
        """These, and the other's for keys that are not set here."""
        return Expectations(**{**asdict(other), **self.to_json()})

    def contradictions(self, other: Expectations) -> tuple[str, ...]:
        """The keys that both set, to different values."""
        mine, theirs = self.to_json(), other.to_json()
        return tuple(name for name in mine if name in theirs and mine[name] != theirs[name])


def summary(expected: Mapping[str, JSON]) -> str:
    """Expectations as to_json gives them, for people: "expected as given: gpus 8, mig on"."""
    listed = ", ".join(f"{name} {_word(value)}" for name, value in expected.items() if name in KEYS)
    return f"expected as given: {listed}" if listed else ""


def _word(value: JSON) -> str:
    return (
        ("on" if value else "off")
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


KEYS: tuple[str, ...] = tuple(options_of(Expectations))


def parse(section: object) -> Expectations:
    """The expectations of a parsed section: typed values by key, None where nothing is set.

    Raises OptionError that names the key.
    """
    return read(Expectations, section, KEY)


def parse_arguments(arguments: tuple[str, ...]) -> Expectations:
    """The expectations of the command line: each argument is KEY=VALUE. Raises OptionError that names it."""
    section: dict[str, object] = {}
    for assignment in arguments:
        key, equals, given = assignment.partition("=")
        if not (key and equals):
            raise OptionError(key, f"{assignment!r} is not KEY=VALUE; the keys are {', '.join(KEYS)}")
        kind = known_option(Expectations, key, KEY).kind
        assert kind is not None  # there are no sections within
        if key in section:
            raise OptionError(key, f"{key} is given twice; give it once")
        try:
            section[key] = kind.from_text(given)
        except (ValueError, KeyError):
            section[key] = ...  # which no key takes
        if kind.problem(section[key]):
            raise OptionError(key, f"{key} must be {kind.wanted.replace(' in quotes', '')}, not {given!r}")
    return parse(section)


def expectations_of(options: Mapping[str, JSON]) -> Expectations:
    """What the options of a plan say: the one reader for all checks. Raises OptionError."""
    return parse(options.get(KEY) or {})
