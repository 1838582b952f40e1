"""Whether kubelet offers the GPUs that the inventory has of the node."""

from __future__ import annotations

from gpu_burnin.admission.decide.nodes import amount
from gpu_burnin.admission.view import Node
from gpu_burnin.api.record import Hardware

GPUS_MISSING = "GPUS_MISSING"


def missing_gpus(node: Node, hardware: Hardware) -> str:
    """Which GPUs kubelet does not offer, in words; "" where it offers as many as it should.

    Where the inventory has no device plugin, also "" where kubelet names none at all, or offers more.
    """
    wanted, resource = hardware.gpus, hardware.resource
    capacity, offered = amount(node, "capacity", resource), amount(node, "allocatable", resource) or 0
    if wanted <= 0 or (offered == wanted if hardware.offered else capacity is None or offered >= wanted):
        return ""
    if capacity is None:
        return f"kubelet does not offer {resource}: its device plugin has not registered"
    return f"kubelet offers {offered} of {wanted} {resource}"
