"""Which NVLinks the GPUs of this node should have: decided once, when a run is planned, for all checks. Pure.

What the operator expects goes first. Else the node's own shape decides, by what NVML reads of links
and fabric, how many GPUs there are, and whether NVSwitches are on the PCI bus:

- A GPU of a board with NVLink to all others (`fabric` in skus.yaml) should have all links of its model as soon as there
  is anything to link it with: another GPU, an NVSwitch, or one active link. Only a GPU that is alone, with no NVSwitch,
  no active link and no fabric that waits for it is one of a machine without NVLink, as a virtual machine with one
  GPU of a larger board. Eight GPUs without a link are eight faults.
- Where such GPUs are four at most, with no NVSwitch on the bus and no word of a fabric, they are linked directly (the
  four-GPU boards of A100, H100 and H200): no fabric has to be ready, and no switch adds.
- Cards (no `fabric`) have NVLinks only by bridges, which are optional and connect two or four. A card with any active
  link should have all of its model. Cards without are taken for cards without a bridge, unless the number of those with
  links is odd: then one of the others has lost its end of a bridge.
- In MIG mode no GPU reaches another, and some models switch their links off: none are wanted.
- A reading that failed says nothing: what the model has is wanted, and the state check tells that it is unread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_burnin.hardware import Sku, SkuTable
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.system.codec import from_json
from gpu_burnin.telemetry import fabric_health
from gpu_burnin.telemetry.state import GpuState, Unsupported, known
from gpu_burnin.types import JSON, Gpu, Notice

# The key in the options of a plan.
KEY = "node_links"
# The largest board whose GPUs are linked without NVSwitches.
_MOST_DIRECT = 4


class Source(StrEnum):
    """Who decided."""

    EXPECTATION = "expectation"
    MODEL = "model"
    SHAPE = "shape of the node"


@dataclass(frozen=True)
class GpuLinks:
    """What one GPU should have: active `links`, NVLink `to_all` others of the node, `switched` by NVSwitches."""

    links: int = 0
    to_all: bool = False
    switched: bool = False


@dataclass(frozen=True)
class NodeLinks:
    """What all GPUs of the node should have, by UUID.

    `why` is for people, "" where it is what the models have. `odd` are cards of which one should have links and it
    is unknown which.
    """

    gpus: Mapping[str, GpuLinks] = field(default_factory=dict)
    source: Source = Source.MODEL
    why: str = ""
    odd: tuple[str, ...] = ()

    def of(self, uuid: str, sku: Sku | None) -> GpuLinks:
        """What a GPU should have: what its model has where nothing else was decided, nothing of an unknown model."""
        return self.gpus.get(uuid) or by_model(sku)

    def joined(self, gpus: Mapping[str, Sku | None]) -> bool:
        """Whether these GPUs (UUID and model) should talk over NVLink, each with each other.

        Bridges are known to connect two only where no others of the node are bridged.
        """
        own = [self.of(uuid, sku) for uuid, sku in gpus.items()]
        if not own or not all(one.links for one in own):
            return False
        others = [links for uuid, links in self.gpus.items() if uuid not in gpus and links.links and not links.to_all]
        return all(one.to_all for one in own) or (len(own) <= 2 and not others)

    def why_no_floor(self, uuid: str, sku: Sku | None) -> str | None:
        """Why the floors of its model cannot judge the rates over the links of a GPU; None where they can."""
        own = self.of(uuid, sku)
        if sku is None or own == by_model(sku):
            return None
        return f"the floors are those of {sku.nvlink_links} NVLinks as on the boards that the model is made for"


def node_links_of(options: Mapping[str, JSON]) -> NodeLinks:
    """What the options of a plan say: the one reader for all checks. Options without it say nothing."""
    return from_json(NodeLinks, options.get(KEY, {}))


def by_model(sku: Sku | None) -> GpuLinks:
    """What a model has on the boards that it is made for; cards as with their bridges."""
    return GpuLinks(sku.nvlink_links, sku.fabric and sku.nvlink_links > 0, sku.fabric) if sku else GpuLinks()


def absent(links: NodeLinks, gpus: Iterable[Gpu], skus: SkuTable) -> Notice | None:
    """That GPUs were taken to have fewer NVLinks than their models because of what the node shows, by nobody's word."""
    fewer: list[JSON] = [
        gpu.uuid for gpu in gpus if (sku := skus.skus.get(gpu.sku)) and links.of(gpu.uuid, sku).links < sku.nvlink_links
    ]
    if links.source is not Source.SHAPE or not fewer:
        return None
    message = f"{links.why}; nobody confirmed it, and missing NVLinks would look the same: set expect.nvlink_links"
    return Notice("NVLINK_ABSENT", "state", message, details={"gpus": fewer, "why": links.why})


def decide(
    states: Sequence[GpuState], expect: Expectations, skus: SkuTable, *, on_bus: int = 0, switches: int = 0
) -> NodeLinks:
    """What each GPU should have. `on_bus` GPUs and `switches` (NVSwitches) are on the PCI bus, 0 where not known."""
    models = {state.uuid: skus.find(state.pci_device_id, state.pci_subsystem_id) for state in states if state.uuid}
    if expect.nvlink_links is not None:
        return _expected(models, expect.nvlink_links)
    if expect.mig:
        why = "no NVLinks are required: in the expected MIG mode no GPU reaches another"
        return NodeLinks(dict.fromkeys(models, GpuLinks()), Source.EXPECTATION, why)
    live = [(state, sku) for state in states if not state.lost and (sku := models.get(state.uuid)) is not None]
    board = [(state, sku) for state, sku in live if sku.fabric]
    cards = [(state, sku) for state, sku in live if not sku.fabric and sku.nvlink_links]
    count = max(len(states), on_bus, expect.gpus or 0)
    parts = (_board(board, count, switches), *(_cards(of_model) for of_model in _by_model(cards)))
    found = {state.uuid: GpuLinks() for state, _ in live}
    for part in parts:
        found |= part.gpus
    why = "; ".join(part.why for part in parts if part.why)
    odd = tuple(uuid for part in parts for uuid in part.odd)
    return NodeLinks(found, Source.SHAPE if why else Source.MODEL, why, odd)


_Seen = tuple[GpuState, Sku]


def _expected(models: Mapping[str, Sku | None], links: int) -> NodeLinks:
    """As many as the operator says; none also means no fabric."""
    gpus = {
        uuid: GpuLinks(links, bool(links and sku and sku.fabric), bool(links and sku and sku.fabric))
        for uuid, sku in models.items()
    }
    each = f"{links} NVLinks are expected on each GPU" if links else "no NVLink is expected on this machine"
    return NodeLinks(gpus, Source.EXPECTATION, f"{each}, as configured")


def _board(gpus: Sequence[_Seen], count: int, switches: int) -> NodeLinks:
    """GPUs with NVLink to all others of their board."""
    if not gpus:
        return NodeLinks()
    linked = any(known(state.nvlink_active) for state, _ in gpus)
    read = all(_links_told(state) for state, _ in gpus)
    if count == 1 and not switches and not linked and read and not _awaited(gpus[0][0]):
        why = "this machine has no NVLink: its one GPU has no active link, and there is no NVSwitch on the PCI bus"
        return NodeLinks({state.uuid: GpuLinks() for state, _ in gpus}, why=why)
    silent = all(not known(state.fabric_state) and _fabric_told(state) for state, _ in gpus)
    direct = linked and silent and not switches and count <= _MOST_DIRECT
    found = {state.uuid: GpuLinks(sku.nvlink_links, True, not direct) for state, sku in gpus}
    return NodeLinks(
        found, why="the GPUs are linked directly, without NVSwitches, and there is no fabric" if direct else ""
    )


def _by_model(cards: Sequence[_Seen]) -> Iterable[Sequence[_Seen]]:
    models: dict[str, list[_Seen]] = defaultdict(list)
    for seen in cards:
        models[seen[1].key].append(seen)
    return models.values()


def _cards(gpus: Sequence[_Seen]) -> NodeLinks:
    """Cards of one model, whose NVLinks come by bridges."""
    sku = gpus[0][1]
    bridged = [state.uuid for state, _ in gpus if known(state.nvlink_active)]
    unread = [state.uuid for state, _ in gpus if not _links_told(state)]
    dark = [state.uuid for state, _ in gpus if state.uuid not in (*bridged, *unread)]
    wanted, odd = {*bridged, *unread}, list[str]()
    # One end of a bridge is dark then. Where all have links (in a container), the other ends may be outside.
    if len(bridged) % 2 and dark and not unread:
        wanted, odd = ({*bridged, *dark}, []) if len(dark) == 1 else (wanted, dark)
    found = {state.uuid: GpuLinks(sku.nvlink_links if state.uuid in wanted else 0) for state, _ in gpus}
    if wanted:
        why = f"{sku.nvlink_links} NVLinks by bridges on {len(wanted)} of {len(gpus)} cards ({sku.name})"
    else:
        why = f"there are no NVLink bridges: no card ({sku.name}) has an active link"
    return NodeLinks(found, why=why, odd=tuple(odd))


def _links_told(state: GpuState) -> bool:
    """Whether NVML reported the links, even that there are none; an error is no report."""
    return not isinstance(state.nvlink_active, Unsupported) or state.nvlink_active.by_design


def _fabric_told(state: GpuState) -> bool:
    return not isinstance(state.fabric_state, Unsupported) or state.fabric_state.by_design


def _awaited(state: GpuState) -> bool:
    """Whether the driver knows of a fabric that this GPU has to join and has not, or could not say."""
    value = known(state.fabric_state)
    if value is None:
        return not _fabric_told(state)
    return value not in (0, fabric_health.COMPLETED) or (
        value == fabric_health.COMPLETED and bool(known(state.fabric_status))
    )
