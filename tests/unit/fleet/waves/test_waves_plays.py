"""Which plays of the real playbooks are the controller's, and that none of these can run on a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import sent
from gpu_burnin.fleet.waves.kinds import KINDS
from gpu_burnin.fleet.waves.model import Part
from tests.lab.paths import REPOSITORY

# The plays of localhost, in their order. Who adds one says here that it may run on no worker.
CONTROLLER = {
    "site.yml": [
        "Check the inventory and every role's variables",
        "Issue certificates on the controller",
        "Take away what the last teams had, where no team is left",
        "Write the GPU nodes into the ledger",
        "Wait for the nodes that passed",
        "Name the nodes that have not come",
    ],
    "burnin.yml": [],
    "repair.yml": [],
    "driver_upgrade.yml": [],
    "upgrade.yml": [
        "Check what is to be upgraded",
        "Evaluate the fleet and plan what is left to do",
        "Report the running versions",
    ],
}


def path_of(playbook: str) -> Path:
    return REPOSITORY / ("" if playbook == "site.yml" else "playbooks") / playbook


@cache
def plays(playbook: str) -> list[tuple[str, list[str], frozenset[str]]]:
    """Each play with its name, hosts and tags, those of playbooks that it imports too."""
    return list(_plays(path_of(playbook)))


def _plays(path: Path) -> Iterator[tuple[str, list[str], frozenset[str]]]:
    for play in DataLoader().load_from_file(str(path)):
        if imported := play.get("ansible.builtin.import_playbook") or play.get("import_playbook"):
            yield from _plays(path.parent / imported)
        else:
            yield play["name"], _words(play["hosts"]), frozenset(_words(play.get("tags", [])))


def _words(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def goes_to_workers(playbook: str) -> bool:
    with suppress(GpuBurninError):
        sent.refuse(str(path_of(playbook)), ())
        return True
    return False


@pytest.mark.parametrize("playbook", KINDS)
def test_each_play_of_the_controller_is_known(playbook: str) -> None:
    found = [name for name, hosts, _ in plays(playbook) if "localhost" in ",".join(hosts)]
    assert found == CONTROLLER[playbook]


def test_a_playbook_that_goes_to_workers_has_no_play_of_the_controller() -> None:
    away = [playbook for playbook in KINDS if goes_to_workers(playbook)]
    assert away == ["burnin.yml"]
    for playbook in away:
        assert not CONTROLLER[playbook]
        assert all(hosts == ["gpu_nodes"] for _, hosts, _ in plays(playbook))
        kind = KINDS[playbook]
        assert Part.NODES not in kind.beside and not kind.limits and not kind.seen, "a shard's hosts alone"


def test_plays_of_the_controller_of_site_run_beside_no_shard() -> None:
    """Shards are limited to their hosts; control plane, first contact and admission are processes of the controller."""
    kind = KINDS["site.yml"]
    assert Part.NODES not in kind.beside and Part.NODES not in kind.limits
    assert "localhost" in kind.limits[Part.CONTROL]
    words = kind.parts[Part.CONTROL]
    skipped = set(words[words.index("--skip-tags") + 1].split(","))
    tags = {name: tags for name, hosts, tags in plays("site.yml") if "localhost" in ",".join(hosts)}
    once = [name for name, of_play in tags.items() if not of_play & skipped]
    later = [name for name in tags if name not in once]
    assert (once, later) == (
        [
            "Check the inventory and every role's variables",
            "Issue certificates on the controller",
            "Take away what the last teams had, where no team is left",
            "Write the GPU nodes into the ledger",
        ],
        ["Wait for the nodes that passed", "Name the nodes that have not come"],
    )
