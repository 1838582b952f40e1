"""The states of systemd services."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.muster.fleet.plugins.module_utils.nvidia.commands import CommandError, Run

NOT_FOUND = "not-found"


def states(names: Sequence[str], run: Run) -> dict[str, str]:
    """Each service's ActiveState (active, inactive, failed, ...), or `not-found`. Raises CommandError."""
    units = [f"{name}.service" for name in names]
    done = run(["systemctl", "show", "--property=LoadState,ActiveState", *units])
    if done.code != 0:
        raise CommandError(f"systemctl show failed: {done.err.strip()}")
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in done.out.strip().split("\n\n")]
    if len(blocks) != len(names):
        raise CommandError(f"systemctl show told of {len(blocks)} services and not of {len(names)}")
    return {
        name: NOT_FOUND if block.get("LoadState") == NOT_FOUND else block.get("ActiveState", "")
        for name, block in zip(names, blocks, strict=True)
    }
