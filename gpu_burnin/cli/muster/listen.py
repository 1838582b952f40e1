"""Where a service listens, as its option says it."""

from __future__ import annotations

import click


def address(text: str) -> tuple[str, int]:
    """Out of ADDRESS:PORT. Raises click.UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {text!r} is no ADDRESS:PORT")
    return host.strip("[]"), int(port)
