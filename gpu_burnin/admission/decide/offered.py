"""Whether kubelet offers the GPUs that the inventory has of the node, or the MIG instances that were tested on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpu_burnin.admission.decide.nodes import amount
from gpu_burnin.admission.view import Node
from gpu_burnin.api.record import Hardware
from gpu_burnin.system.hardware_identity import layout_text, mig_layouts
from gpu_burnin.types import JSON

GPUS_MISSING = "GPUS_MISSING"
SINGLE, MIXED = "single", "mixed"
# What a person needs to find a GPU on its node: the first part of its UUID.
_UUID_CHARS = len("GPU-00000000")


def missing_gpus(node: Node, hardware: Hardware, tested: Mapping[str, JSON]) -> str:
    """Which GPUs or MIG instances kubelet does not offer, in words; "" where it offers as many as it should.

    `tested` is the hardware identity of the evidence, which has the instances. Where the inventory has no device
    plugin, also "" where kubelet names none at all, or offers more; of GPUs in MIG mode nothing is asked then.
    """
    layouts = mig_layouts(tested)
    if hardware.gpus <= 0 or (layouts and not hardware.offered):
        return ""
    if problem := _not_offerable(hardware, layouts, tested):
        return problem
    wanted = offers(hardware, layouts)
    short = [text for resource, count in wanted.items() if (text := _short(node, resource, count, hardware.offered))]
    # A plugin of another strategy offers under other names.
    others = [
        name for name in _named(node, hardware.resource) if name not in wanted and amount(node, "allocatable", name)
    ]
    if layouts and others:
        short.append(f"it also offers {', '.join(others)}, which nobody tested as such")
    return "; ".join(short)


def offers(hardware: Hardware, layouts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """How many of which resource NVIDIA's device plugin offers for what was tested.

    In MIG mode instances have the name of whole GPUs (`single`), or one by their profile (`mixed`), in which "+" is "."
    (k8s-device-plugin, internal/rm: AddDefaultResourcesToConfig).
    """
    if not layouts:
        return {hardware.resource: hardware.gpus}
    profiles: Counter[str] = Counter()
    for layout in layouts.values():
        profiles.update(layout)
    if hardware.mig_strategy == SINGLE:
        return {hardware.resource: profiles.total()}
    return {f"{_prefix(hardware.resource)}{name.replace('+', '.')}": count for name, count in sorted(profiles.items())}


def is_named(node: Node, hardware: Hardware, tested: Mapping[str, JSON]) -> bool:
    """Whether kubelet names all that it should offer, in whatever number: its device plugin has registered, and a test
    may find the GPU that is missing. No test changes instances that cannot be offered at all."""
    layouts = mig_layouts(tested)
    if _not_offerable(hardware, layouts, tested):
        return False
    return all(amount(node, "capacity", name) is not None for name in offers(hardware, layouts))


def _short(node: Node, resource: str, wanted: int, exactly: bool) -> str:
    capacity, offered = amount(node, "capacity", resource), amount(node, "allocatable", resource) or 0
    if offered == wanted if exactly else capacity is None or offered >= wanted:
        return ""
    if capacity is None:
        return f"kubelet does not offer {resource}: its device plugin has not registered"
    return f"kubelet offers {offered} of {wanted} {resource}"


def _not_offerable(hardware: Hardware, layouts: Mapping[str, Mapping[str, int]], tested: Mapping[str, JSON]) -> str:
    """Why a node in MIG mode cannot be let in whatever its kubelet offers; "" where it can."""
    if not layouts:
        return ""
    known = tested.get("gpus")
    gpus = [str(gpu[0]) for gpu in known if isinstance(gpu, list | tuple)] if isinstance(known, list | tuple) else []
    held: dict[str, list[str]] = {}
    for uuid in gpus or layouts:
        held.setdefault(layout_text(layouts.get(uuid)), []).append(uuid[:_UUID_CHARS])
    if len(held) > 1:
        different = "; ".join(f"{words} on {', '.join(uuids)}" for words, uuids in held.items())
        return (
            f"its GPUs have different MIG instances: {different}; give all of them the same "
            "(nvidia-smi mig -dci, -dgi, then -cgi PROFILE,... -C) and test again"
        )
    profiles = sorted({profile for layout in layouts.values() for profile in layout})
    if not profiles:
        return (
            "its GPUs are in MIG mode without instances: make them (nvidia-smi mig -cgi PROFILE,... -C) and test again"
        )
    if hardware.mig_strategy not in (SINGLE, MIXED):
        return (
            "its GPUs are in MIG mode, and the inventory's device plugin has no MIG_STRATEGY: set single or mixed in "
            "nvidia_device_plugin_environment"
        )
    if hardware.mig_strategy == SINGLE and len(profiles) > 1:
        return (
            f"its GPUs have instances of {' and '.join(profiles)}, and a device plugin with MIG_STRATEGY single offers "
            "those of one profile: give all one profile, or set mixed"
        )
    return ""


def _named(node: Node, resource: str) -> list[str]:
    """The names under which kubelet may offer GPUs and instances: the resource, and those of profiles."""
    found = ((node.get("status") or {}).get("allocatable") or {}).keys()
    return sorted(name for name in found if name == resource or str(name).startswith(_prefix(resource)))


def _prefix(resource: str) -> str:
    return f"{resource.partition('/')[0]}/mig-"
