"""Rules between variables that no argument_spec can state: what a role would find out only on the hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.binaries import request_problems

# What is wrong, and what to do.
Finding = tuple[str, str]


@dataclass(frozen=True)
class RoleRule:
    """`check` is given the values of `variables` in this order; what it finds is the fault of `blamed`."""

    variables: tuple[str, ...]
    blamed: str
    check: Callable[..., Iterable[Finding]]


def binary_checksums(names: Any, checksums: Any) -> Iterable[Finding]:
    """Every binary has its SHA-256. The argument_specs refuse values of a wrong type."""
    listed = names.split(",") if isinstance(names, str) else names
    usable = isinstance(listed, list) and isinstance(checksums, Mapping)
    return request_problems([str(name) for name in listed], checksums) if usable else ()


def image_checksums(images: Any, checksums: Any) -> Iterable[Finding]:
    """Every archive of an image has its SHA-256."""
    return binary_checksums(list(images.values()), checksums) if isinstance(images, Mapping) else ()


_CHECKSUMS = "kube_binaries_checksums"
ROLE_RULES: Mapping[str, tuple[RoleRule, ...]] = {
    "kube_binaries": (RoleRule(("kube_binaries_names", _CHECKSUMS), _CHECKSUMS, binary_checksums),),
    "container_runtime": (RoleRule(("container_runtime_images", _CHECKSUMS), _CHECKSUMS, image_checksums),),
}
