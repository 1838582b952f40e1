"""The playbooks that can be rolled, and what of each is run where. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves.model import Part

NODES = ("gpu_nodes", "system_nodes")
GPU_NODES = ("gpu_nodes",)
# Plays of the controller run where the limit names it.
_BEYOND_NODES = "localhost:all:!gpu_nodes:!system_nodes"


@dataclass(frozen=True)
class Kind:
    """A playbook: the groups that it is for, and ansible-playbook's arguments of each of its parts, in their order.

    `limits` has what a part is limited to; without one it is the hosts of the step, with the controller in `beside`.
    """

    groups: tuple[str, ...]
    parts: Mapping[Part, tuple[str, ...]]
    limits: Mapping[Part, str]
    beside: frozenset[Part] = frozenset()
    # Groups that a part looks at too, beside its hosts and the controller.
    seen: Mapping[Part, tuple[str, ...]] = field(default_factory=dict)
    # Shards at a time, where the playbook allows no more.
    most_workers: int | None = None


_SITE = Kind(
    groups=NODES,
    parts={
        Part.CONTROL: ("--skip-tags", "admit,report"),
        Part.CONTACT: ("--tags", "first_contact"),
        Part.NODES: ("--skip-tags", "report"),
        Part.ADMIT: ("--tags", "admit"),
    },
    limits={Part.CONTROL: _BEYOND_NODES},
    # Ansible refuses a limit of localhost alone.
    beside=frozenset({Part.CONTACT, Part.ADMIT}),
)
_TESTS = Kind(groups=GPU_NODES, parts={Part.NODES: ()}, limits={})
# It has one lock, and takes its nodes out of work in batches of its own.
_DRIVER = Kind(groups=GPU_NODES, parts={Part.NODES: ()}, limits={}, most_workers=1)
# Whether a kubelet may change depends on what the servers run. They were upgraded before, by the playbook alone.
_UPGRADE = Kind(
    groups=NODES,
    parts={Part.NODES: ("-e", "part=nodes")},
    limits={},
    beside=frozenset({Part.NODES}),
    seen={Part.NODES: ("etcd", "etcd_events", "kube_apiserver")},
)
KINDS: Mapping[str, Kind] = {
    "site.yml": _SITE,
    "burnin.yml": _TESTS,
    "repair.yml": _TESTS,
    "driver_upgrade.yml": _DRIVER,
    "upgrade.yml": _UPGRADE,
}

# Words of ansible-playbook, which takes the start of one for the whole, and -Cl for -C -l: what every shard is given
# another one of, what does no work, and what tells the parts of a playbook from each other.
_FLAGS = "[bvCDJKk]*"
_GIVEN = re.compile(rf"-{_FLAGS}[li].*|--(lim|i).*")
_IDLE = re.compile(rf"-{_FLAGS}h.*|--(list|sy|ste|vers|h).*")
_TAGS = re.compile(rf"-{_FLAGS}t.*|--ta.*")


def refuse(kind: Kind, arguments: Sequence[str]) -> None:
    """Raise GpuBurninError for arguments of ansible-playbook that no shard may have."""
    for word in arguments:
        if _GIVEN.fullmatch(word):
            why = "each shard has its own hosts and the inventory of the roll; give --limit and -i before `--`"
        elif _IDLE.fullmatch(word):
            why = "with it no node would be done; call ansible-playbook for that"
        elif _TAGS.fullmatch(word) and any("--tags" in words for words in kind.parts.values()):
            why = "the parts of this playbook are told by their tags; call ansible-playbook, or give --skip-tags"
        else:
            continue
        raise GpuBurninError(f"{word} cannot stand behind `--`: {why}")


def kind_of(playbook: str) -> Kind:
    """How a playbook is rolled. Raises GpuBurninError for one that cannot be."""
    name = Path(playbook).name
    if name not in KINDS:
        raise GpuBurninError(f"{playbook} cannot be rolled: {', '.join(KINDS)} can; call others with ansible-playbook")
    return KINDS[name]
