"""The rules of standing admission: what has to change for one node, from all that is known of it. Pure."""

from gpu_burnin.admission.decide.codes import CODES
from gpu_burnin.admission.decide.core import Decision, decide, withheld
from gpu_burnin.admission.decide.facts import node_ttl_s
from gpu_burnin.admission.decide.nodes import DELETED, boot_id, condition, gated, machine_id, trim_node

__all__ = [
    "CODES",
    "DELETED",
    "Decision",
    "boot_id",
    "condition",
    "decide",
    "gated",
    "machine_id",
    "node_ttl_s",
    "trim_node",
    "withheld",
]
