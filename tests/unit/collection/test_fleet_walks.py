"""No variable or task that each host has walks all hosts: with 7,500 of them that is 56 million steps.

Only here: what a role's expressions cost by their form. What the whole check costs: test_inventory_cost.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.paths import REPOSITORY
from tests.support.fleet_walks import SMALL, texts, walks
from tests.support.site_plays import roles_of, site_plays

# Variables that name a group of etcd's hosts.
NAMES = frozenset({"etcd_group", "etcd_backup_group"})


@dataclass(frozen=True)
class Needed:
    """A walk that is needed: why, and the name of what does it, which tasks of each host in `tasks` never read."""

    why: str
    name: str = ""
    tasks: str = "main.yml"


_ROUTES = Needed("each node has a route to each other one")
_LEDGER = Needed(
    "localhost writes all nodes into the ledger; a node asks its own gate", "__node_admission_", "gate.yml"
)
_COUNTING = Needed("the controller lists the nodes that still count, once", "__node_traffic_left", "absent.yml")
# By file and by what they go over.
NEEDED = {
    ("roles/node_traffic/vars/main.yml", "groups[system_nodes]"): _COUNTING,
    ("roles/node_traffic/vars/main.yml", "groups[gpu_nodes]"): _COUNTING,
    ("roles/pod_network/vars/main.yml", "groups[system_nodes]"): _ROUTES,
    ("roles/pod_network/vars/main.yml", "groups[gpu_nodes]"): _ROUTES,
    ("roles/gpu_burnin/vars/main.yml", "ansible_play_hosts"): Needed(
        "the controller builds for each CUDA version of the play, once", "__gpu_burnin_cudas"
    ),
    ("roles/node_admission/vars/main.yml", "groups[system_nodes]"): _LEDGER,
    ("roles/node_admission/vars/main.yml", "groups[gpu_nodes]"): _LEDGER,
    ("playbooks/etcd_restore.yml", "ansible_play_hosts_all"): Needed("its play is of the members of one etcd"),
    ("roles/nvidia_device_plugin/templates/daemonset.yaml.j2", "groups[system_nodes]"): Needed(
        "one DaemonSet for the fleet, written once", "daemonset.yaml.j2"
    ),
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{{ 'gpu' if inventory_hostname in groups['gpu_nodes'] | default([]) else 'system' }}", ["gpu_nodes"]),
        ("{{ inventory_hostname not in groups.etcd }}", ["etcd"]),
        ("{{ 'x' in groups['all'] }}", ["all"]),
        ("{{ groups['gpu_nodes'] | map('extract', hostvars) | list }}", ["gpu_nodes"]),
        ("{{ groups['system_nodes'] | default([]) + groups['gpu_nodes'] }}", ["system_nodes", "gpu_nodes"]),
        ("{{ groups['all'].index(inventory_hostname) }}", ["all"]),
        ("{% for host in groups[wanted] %}{{ host }}{% endfor %}", ["wanted"]),
        ("{{ hostvars | dict2items }}", ["hostvars"]),
        ("{{ hostvars.values() | list }}", ["hostvars"]),
        ("{{ ansible_play_hosts | sort }}", ["ansible_play_hosts"]),
        ("{{ 'gpu_nodes' in group_names }}", []),
        ("{{ groups['kube_apiserver'] | muster.fleet.addresses(hostvars) }}", []),
        ("{{ groups['gpu_nodes'] | default([]) | length }}", []),
        ("{{ groups['gpu_nodes'] | default([]) }}", []),
        ("{{ hostvars['x'].y }}", []),
        ("{{ groups[etcd_group] | sort }}", []),
    ],
)
def test_what_is_a_walk(text: str, found: list[str]) -> None:
    seen = walks(text, NAMES)
    assert len(seen) == len(found) and all(name in one for name, one in zip(found, seen, strict=True)), seen


def test_bare_expressions_are_read_too() -> None:
    tasks = [{"block": [{"when": "inventory_hostname in groups['etcd']"}], "name": "in groups"}]
    assert [walks(text) for text in texts(tasks)] == [["inventory_hostname in groups[etcd]"]]


def of_many(role: str) -> bool:
    """Whether a play gives the role to a group that grows with the fleet; to one of those that no play of site.yml has,
    a playbook may."""
    patterns = [str(play["hosts"]) for play in site_plays() if role in roles_of(play)]
    return not patterns or any(not {*pattern.split(":")} <= {*SMALL, "localhost"} for pattern in patterns)


def once(document: Any) -> Any:
    """The tasks without those that one host does for all."""
    if not isinstance(document, list):
        return document
    kept = [task for task in document if not (isinstance(task, dict) and task.get("run_once") is True)]
    return [{**task, "block": once(task["block"])} if "block" in task else task for task in kept]


def of_nodes(plays: list[dict[str, Any]]) -> list[Any]:
    """What a playbook's own tasks and variables ask for each host of a group that grows with the fleet."""
    parts = ("vars", "pre_tasks", "tasks", "post_tasks")
    many = [play for play in plays if not {*str(play.get("hosts", "localhost")).split(":")} <= {*SMALL, "localhost"}]
    return [once(play[part]) for play in many for part in parts if part in play]


def test_what_a_play_asks_for_each_node_is_read_and_what_it_asks_once_is_not() -> None:
    walk = "{{ groups['gpu_nodes'] | map('extract', hostvars) }}"
    tasks = [{"name": "each", "debug": {"msg": walk}}, {"name": "once", "debug": {"msg": walk + "1"}, "run_once": True}]
    plays = [{"hosts": "gpu_nodes", "tasks": tasks, "vars": {"mine": walk + "2"}}, {"hosts": "etcd", "tasks": tasks}]
    assert [text for text in texts(of_nodes(plays)) if "groups" in text] == [walk + "2", walk]


def templates_of(path: Path) -> Iterator[str]:
    if path.suffix == ".j2":
        yield path.read_text()
    elif path.suffix in (".yml", ".yaml"):
        yield from texts(once(yaml.safe_load(path.read_text())))


@pytest.mark.slow
def test_no_expression_of_one_host_walks_all() -> None:
    found: dict[tuple[str, str], str] = {}
    for role in sorted((REPOSITORY / "roles").iterdir()):
        files = [path for part in ("defaults", "vars", "tasks", "templates") for path in (role / part).rglob("*")]
        small = not of_many(role.name)
        for path in files:
            for text in templates_of(path):
                for walk in walks(text, NAMES):
                    # Of few hosts, each may look at all; `group_names` is the cheaper question there too.
                    if not small or walk.startswith("inventory_hostname"):
                        found[str(path.relative_to(REPOSITORY)), walk] = text
    for path in (REPOSITORY / "site.yml", *sorted((REPOSITORY / "playbooks").glob("*.yml"))):
        for text in texts(of_nodes(yaml.safe_load(path.read_text()))):
            found |= {(str(path.relative_to(REPOSITORY)), walk): text for walk in walks(text, NAMES)}
    for path in sorted((REPOSITORY / "inventory").rglob("*.y*ml")):
        for text in templates_of(path):
            found |= {(str(path.relative_to(REPOSITORY)), walk): text for walk in walks(text, NAMES)}
    assert {key: text for key, text in found.items() if key not in NEEDED} == {}
    assert sorted(NEEDED) == sorted(found), "an exception that is needed no more"


@pytest.mark.parametrize(("file", "needed"), [(file, one) for (file, _), one in NEEDED.items() if one.name])
def test_what_is_needed_once_is_read_once(file: str, needed: Needed) -> None:
    tasks = yaml.safe_load((REPOSITORY / file).parents[1].joinpath("tasks", needed.tasks).read_text())
    read = list(texts(once(tasks)))
    assert not [text for text in read if needed.name in text], needed.why
