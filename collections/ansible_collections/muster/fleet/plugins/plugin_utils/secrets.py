"""Values that Ansible Vault has encrypted one by one (`!vault`), alone or inside of other values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible.parsing.vault import EncryptedString


def encrypted(value: Any, name: str = "") -> Iterator[tuple[str, EncryptedString]]:
    """The encrypted values in a value, each with the outermost key that it stands under, or `name`."""
    if isinstance(value, EncryptedString):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from encrypted(item, name or str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from encrypted(item, name)


def is_secret(value: Any) -> bool:
    """Whether something in the value is encrypted, so that it must not be shown."""
    return next(encrypted(value), None) is not None


def opened(value: Any) -> Any:
    """The value with all of it in plain text. Raises AnsibleError when no password opens it."""
    if isinstance(value, EncryptedString):
        return str(value)
    if isinstance(value, Mapping):
        return {key: opened(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [opened(item) for item in value]
    return value
