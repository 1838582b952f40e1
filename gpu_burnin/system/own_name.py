"""The name of this machine in all that is told of it. Standard library only: the flags' defaults need it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

# The Node's name, where the host's own name is another one: in the agent's pod, for all that runs there.
NODE_VARIABLE = "GPU_BURNIN_NODE"


def host_name(environment: Mapping[str, str] = os.environ) -> str:
    """By which people know this machine, for all that is told of it: in a pod the Node's name, and not the pod's."""
    return environment.get(NODE_VARIABLE) or socket.gethostname()
