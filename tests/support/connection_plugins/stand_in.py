"""Connection plugin for tests of plays: hosts that are files. It runs no module, and answers in the place of each.

MUSTER_STAND_IN names a folder with plan.json: `results` by module and `commands` by a word of them, `dead` the hosts
that never answer, `dies` by host a word: the first call with it is its last. `log` gets a line for each call that was
answered, `tries` one for each call of a dead host.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = r"""
name: stand_in
short_description: Answer in the place of hosts
description: Written for tests.
author: Muster (@muster)
extends_documentation_fragment:
  - connection_pipelining
"""
_MODULE = re.compile(rb"ansible_collections\.muster\.fleet\.plugins\.modules\.(\w+)|ansible\.modules\.(\w+)")


class Connection(ConnectionBase):  # type: ignore[misc]
    """One host."""

    transport = "stand_in"
    has_pipelining = True

    def _connect(self) -> Connection:
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """What the plan says of the module, or of the command; raises AnsibleConnectionFailure for a dead host."""
        folder, host = Path(os.environ["MUSTER_STAND_IN"]), str(self._play_context.remote_addr)
        plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
        call = f"{cmd}\n".encode() + (in_data or b"")
        word = plan["dies"].get(host, "")
        if host in plan["dead"] or (folder / f"{host}.dead").exists() or (word and word.encode() in call):
            (folder / f"{host}.dead").touch()
            with (folder / "tries").open("a") as tries:
                tries.write(f"{host}\n")
            raise AnsibleConnectionFailure(f"Failed to connect to the host via ssh: ssh: connect to {host}: timed out")
        found = _MODULE.search(in_data or b"")
        if found is None:
            answer = next((text for part, text in plan["commands"].items() if part in cmd), "")
            return 0, answer.encode(), b""
        module = (found[1] or found[2]).decode()
        with (folder / "log").open("a") as log:
            log.write(f"{host} {module}\n")
        return 0, json.dumps({"changed": False, **plan["results"].get(module, {})}).encode(), b""

    def put_file(self, in_path: str, out_path: str) -> None:
        """Nothing has to be there."""

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Nothing is there."""

    def close(self) -> None:
        """Nothing is open."""
