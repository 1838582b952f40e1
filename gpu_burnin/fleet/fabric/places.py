"""Whether the places of nodes are what a plan needs, each mistake in one sentence. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_burnin.api.names import DEFAULT_DOMAIN
from gpu_burnin.fabric.model import Fabric, Node
from gpu_burnin.system.prose import listed
from gpu_burnin.system.quantities import count

_PLACE, _NICS = "fleet_place", "fleet_fabric_nics"


@dataclass(frozen=True)
class Given:
    """What the Ansible action `fabric_given` writes."""

    nodes: tuple[Node, ...]
    # By node: the address and the port at which its host key is pinned.
    logins: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    state_dir: str = ""
    known_hosts: str = ""
    domain: str = DEFAULT_DOMAIN


def problems(fabric: Fabric) -> tuple[str, ...]:
    """What has to be set right: with it a plan says less, or something wrong."""
    return (*_leafless(fabric), *_addresses(fabric), *_spines(fabric), *_rails(fabric))


def notes(fabric: Fabric) -> tuple[str, ...]:
    """What is no mistake, and changes what can be told."""
    found = []
    leaves = {leaf: names for leaf, names in fabric.leaves.items() if leaf}
    if len(fabric.nodes) == 1:
        found.append(f"{fabric.nodes[0].name}: is the only node; there is nothing to test it with")
    alone = [names[0] for names in leaves.values() if len(names) == 1]
    if alone and len(fabric.nodes) > 1:
        found.append(
            f"{listed(alone)}: no other node has the same {_PLACE}.leaf; such a node is tested with other leaves, and "
            "not told from its leaf switch"
        )
    odd = [leaf for leaf, names in leaves.items() if len(names) > 1 and len(names) % 2]
    if odd:
        found.append(f"{listed(odd)}: {_PLACE}.leaf of an odd number of nodes; three are one test in each pairing")
    two = [leaf for leaf, names in leaves.items() if len(names) == 2]
    if two:
        found.append(f"{listed(two)}: {_PLACE}.leaf of two nodes; its pairings are the same pair")
    racks = Counter(node.rack for node in fabric.nodes if node.rack)
    single = [node.name for node in fabric.nodes if racks.get(node.rack) == 1]
    if single and len(racks) > 1:
        found.append(f"{listed(single)}: no other node has the same {_PLACE}.rack; a claim may be one of the rack")
    if len(leaves) == 1 and len(fabric.nodes) > 1:
        found.append(f"{next(iter(leaves))}: is the only {_PLACE}.leaf; there is nothing between leaves to test")
    return tuple(found)


def _leafless(fabric: Fabric) -> Iterator[str]:
    names = [node.name for node in fabric.nodes if not node.leaf]
    if names:
        of_all = "no node has" if len(names) == len(fabric.nodes) else f"{listed(names)}: no"
        yield f"{of_all} {_PLACE}.leaf, so their switch cannot be named; give the leaf switch of each"


def _addresses(fabric: Fabric) -> Iterator[str]:
    owners: dict[str, list[str]] = {}
    for node in fabric.nodes:
        for nic in node.nics:
            owners.setdefault(_plain(nic.address), []).append(node.name)
    for address, names in owners.items():
        if not address:
            yield f"{listed(names)}: a NIC of {_NICS} has no address; give one, or set ansible_host"
        elif len(names) > 1:
            yield f"{listed(names)}: the address {address} stands {len(names)} times in {_NICS}; give each NIC its own"


def _plain(address: str) -> str:
    """An address in its one form; a name as it is."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower()


def _spines(fabric: Fabric) -> Iterator[str]:
    for leaf, names in fabric.leaves.items():
        spines = {fabric.by_name[name].spine: name for name in names}
        if leaf and len(spines) > 1:
            told = ", ".join(f"{spine or 'none'} by {name}" for spine, name in sorted(spines.items()))
            yield f"{leaf}: has more than one {_PLACE}.spine ({told}); give all its nodes the same"


def _rails(fabric: Fabric) -> Iterator[str]:
    for leaf, names in fabric.leaves.items():
        counted = Counter(fabric.by_name[name].rails for name in names)
        usual, _ = counted.most_common(1)[0]
        for name in names:
            rails = fabric.by_name[name].rails
            if rails != usual:
                has = f"{count(len(rails), 'rail')} in {_NICS}, and most nodes of its leaf {leaf}"
                yield f"{name}: has {has} have {len(usual)}; complete it"
            if len(rails) < len(fabric.by_name[name].nics):
                yield f"{name}: has two NICs on one rail in {_NICS}; give each NIC a rail"
