"""What to do about a fault, in words that hold in a fleet that site.yml built, and in an attached cluster."""

from __future__ import annotations

from gpu_burnin.api.attached import AGENT_ACCOUNT, Mode
from gpu_burnin.api.names import SYSTEM_NAMESPACE

# Where nobody knows which of the two it is. Of a node without Node object: a running kubelet does not register again.
DELETED = (
    "If somebody deleted its Node, restart its kubelet: site.yml does, and where attached `muster attach approve "
    "--again` comes after it"
)
UNLISTED = "add it to the inventory and run site.yml, or where attached `muster attach approve` it; or delete its Node"
DEFINITIONS = "site.yml brings this version's, and where attached `muster attach` or the crds/ of the chart"
ADMITTERS = (
    "`systemctl status muster-admitter` on the API servers' hosts, or where attached `kubectl get pods --namespace "
    f"{SYSTEM_NAMESPACE}`"
)
AGENT = f"gpu-burnin-watch, or where attached the pod of {AGENT_ACCOUNT}"
KUEUE = "`systemctl status kueue`, or where attached ask whoever runs it"
QUEUES = "site.yml writes those of teams, and where attached whoever runs Kueue there"


def agent(mode: Mode) -> str:
    """Where a node's agent is looked for."""
    return "gpu-burnin-watch on the node" if mode is Mode.BUILT else f"the pod of {AGENT_ACCOUNT} on the node"


def admitters(mode: Mode) -> str:
    """How to look at the admitters."""
    if mode is Mode.BUILT:
        return "look at `systemctl status muster-admitter` on the API servers' hosts"
    return f"look at `kubectl get pods --namespace {SYSTEM_NAMESPACE}`"


def reports(mode: Mode | None) -> str:
    """What is not known without reports and plays, and how to have it; None where the mode is not known."""
    built = "give --state, the inventory's fleet_state_dir"
    attached = f"`kubectl exec --namespace {SYSTEM_NAMESPACE} POD -- gpu-burnin report`, POD of {AGENT_ACCOUNT} there"
    if mode is None:
        return f"reports and plays: {built}; where attached {attached}"
    return f"reports and plays: {built}" if mode is Mode.BUILT else f"the node's report: {attached}"


def audits(mode: Mode | None) -> str:
    """What is not known without audit logs, and how to have it; None where the mode is not known."""
    said = "what people did by the API: give --audit FILE, a copy of "
    built, attached = "/var/log/kubernetes/audit.log of each API server", "the audit log, where your cluster writes one"
    if mode is None:
        return f"{said}{built}; where attached of {attached}"
    return f"{said}{built if mode is Mode.BUILT else attached}"


def admit(name: str, mode: Mode) -> str:
    """What is missing of a Node that no entry says a machine of."""
    if mode is Mode.BUILT:
        return "add it to the inventory and run site.yml, or delete its Node"
    return f"see `muster attach nodes`, then `muster attach approve {name}`"
