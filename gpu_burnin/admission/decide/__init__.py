"""The rules of standing admission: what has to change for one node, from all that is known of it. Pure.

From the evidence to the taint: facts.look judges it once, order.judge finds the first condition that holds,
plan.plan_of says whether the node takes work, desired.desired_state which taints that means, desired.node_patch what
has to change for them. What becomes of tests is in retest.py, who leaves in draining.py.
"""

from gpu_burnin.admission.decide.codes import CODES
from gpu_burnin.admission.decide.core import Decision, decide, withheld
from gpu_burnin.admission.decide.facts import node_ttl_s
from gpu_burnin.admission.decide.nodes import boot_id, condition, gated, machine_id, trim_node

__all__ = [
    "CODES",
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
