"""Jinja filter: a SHA256SUMS file as a dictionary."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: sha256sums
short_description: Read the text of a SHA256SUMS file
version_added: "0.1.0"
description:
  - Gives a dictionary of file name to hexadecimal SHA-256. Folders before a name are dropped.
  - Lines are as C(sha256sum) writes them; empty lines and lines that begin with C(#) are passed over.
options:
  _input:
    description: The text.
    type: str
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
kube_binaries_checksums: "{{ lookup('ansible.builtin.file', 'SHA256SUMS') | muster.fleet.sha256sums }}"
"""

RETURN = r"""
_value:
  description: File name to hexadecimal SHA-256.
  type: dict
"""

LINE = re.compile(r"^(?P<sum>[0-9a-fA-F]{64})[ \t]+\*?(?P<name>\S.*?)\s*$")


def sha256sums(text: str) -> dict[str, str]:
    """`{name: hex}`. Raises AnsibleFilterError for a line of another form or two sums of one name."""
    sums: dict[str, str] = {}
    for number, line in enumerate(str(text).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.match(line)
        if match is None:
            raise AnsibleFilterError(
                f"line {number} of the SHA256SUMS text is not '<64 hex digits>  <name>'; write it with sha256sum"
            )
        name, value = match["name"].rsplit("/", 1)[-1], match["sum"].lower()
        if sums.setdefault(name, value) != value:
            raise AnsibleFilterError(f"line {number} of the SHA256SUMS text gives {name} a second sum; keep one")
    return sums


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"sha256sums": sha256sums}
