"""A token that kubelet renews in a file while its reader goes on: read again, as the client's own library does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

# kubelet renews a token when a fifth of its time is left, which is minutes at the least.
REREAD_S = 30.0


class TokenFile:
    """Called before each request with the client's configuration."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._read_s: float | None = None

    def __call__(self, configuration: Any) -> None:
        """Have the newest token in it; where the file cannot be read the old one stays, and the server judges it."""
        now_s = self._clock()
        if self._read_s is not None and now_s - self._read_s < REREAD_S:
            return
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return
        if text:
            configuration.api_key["BearerToken"] = f"Bearer {text}"
            self._read_s = now_s


def token_file(kubeconfig: Path) -> Path | None:
    """The file of the current user's token, None for one who has another credential, or that cannot be read."""
    try:
        document = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        current = document["current-context"]
        [context] = [one["context"] for one in document["contexts"] if one["name"] == current]
        [user] = [one["user"] for one in document["users"] if one["name"] == context["user"]]
        named = (user or {}).get("tokenFile")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return None
    return kubeconfig.parent / named if isinstance(named, str) and named else None
