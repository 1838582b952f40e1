"""What the controller knows of machines that have no entry in the cluster, so that old evidence never counts as new.

One file a node: an older version's ledger, or what was seen of a machine before its entry was removed or its key
changed.
"""

from __future__ import annotations

import json
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import parse_json, read_text, write_atomic

SCHEMA = "muster-admission/v1"


def carried(directory: Path, node: str, host_key: str) -> tuple[int, str]:
    """The highest sequence seen of a node whose pinned key is `host_key`, and its report; (0, "") where there is none.

    Another key means a reinstalled machine, whose sequence starts again. Raises GpuBurninError for a file that cannot
    be read: guessing would allow a replay.
    """
    path = directory / f"{node}.json"
    try:
        document = parse_json(read_text(path, follow=False))
        if not isinstance(document, dict) or (document["schema"], document["node"]) != (SCHEMA, node):
            raise ValueError(f"not the {SCHEMA} entry of {node}")
        key, sequence, report = (document[name] for name in ("host_key", "highest_sequence", "highest_report_sha256"))
        if not isinstance(key, str) or type(sequence) is not int or not isinstance(report, str):
            raise ValueError("a value of the wrong kind")
    except FileNotFoundError:
        return 0, ""
    except (OSError, ValueError, KeyError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise GpuBurninError(
            f"{node}: cannot read the admission ledger {path} ({why}); restore it from a backup, or remove it to "
            "start over (evidence older than the newest could then be accepted once)"
        ) from error
    return (sequence, report) if key == host_key else (0, "")


def keep(directory: Path, node: str, host_key: str, sequence: int, report_sha256: str) -> None:
    """Write the highest sequence that was seen of a node's key. Raises GpuBurninError."""
    path = directory / f"{node}.json"
    seen = {"host_key": host_key, "highest_sequence": sequence, "highest_report_sha256": report_sha256}
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"schema": SCHEMA, "node": node, **seen}, indent=1, sort_keys=True)
        write_atomic(path, f"{text}\n".encode())
    except OSError as error:
        raise GpuBurninError(
            f"{node}: cannot write the admission ledger {path} ({error.strerror}); "
            "check the directory's owner and space"
        ) from error
