"""How many host-tasks the node stack has on a converged node, and how the benchmark of the controller adds them up."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bench import ansible_cost
from tests.bench.ansible_cost import GOAL_HOST_TASKS, STACK, Share, Task
from tests.lab.paths import REPOSITORY
from tests.support.site_plays import IMPORT, roles_of, site_plays

# The whole of site.yml for a GPU node as asked, of a fleet that has everything.
GOAL_SITE_HOST_TASKS = 40
# Their roles go on past `meta: end_role` on a node as asked: it waits for its clock, and has images.
GO_ON = {"time_sync", "container_runtime"}


class Ended(Exception):
    """The role is at its end for the host."""


def host_tasks(role: Path, tasks: str = "main.yml") -> list[str]:
    """What Ansible starts a worker for on each host, skipped or not, of a role whose node is converged.

    What is done once for the whole fleet is left out; what is included and not imported is skipped.
    """
    found: list[str] = []
    with contextlib.suppress(Ended):
        _collect(role, tasks, found)
    return found


def _collect(role: Path, tasks: str, found: list[str]) -> None:
    _collect_tasks(role, yaml.safe_load((role / "tasks" / tasks).read_text()), found)


def _collect_tasks(role: Path, tasks: list[dict[str, Any]], found: list[str]) -> None:
    for task in tasks:
        if task.get("ansible.builtin.meta") == "end_role" and role.name not in GO_ON:
            raise Ended
        if imported := task.get("ansible.builtin.import_tasks"):
            _collect(role, imported, found)
        elif "block" in task:
            _collect_tasks(role, task["block"], found)
        elif "ansible.builtin.meta" not in task and not task.get("run_once"):
            found.append(f"{role.name}: {task['name']}")


def site_host_tasks(plays: list[dict[str, Any]]) -> list[str]:
    """Those of all plays that a GPU node is in."""
    found: list[str] = []
    for play in plays:
        if not _of_nodes(play):
            continue
        for task in [*play.get("pre_tasks", []), *play["tasks"], *play.get("post_tasks", [])]:
            if IMPORT in task:
                role, name = _imported(task)
                found += host_tasks(REPOSITORY / "roles" / role, name)
            elif "ansible.builtin.meta" not in task and not task.get("run_once"):
                found.append(f"{play['name']}: {task['name']}")
    return found


def _of_nodes(play: dict[str, Any]) -> bool:
    """Whether a GPU node is in the play of a fleet that has everything."""
    return re.search(r"\ball\b|gpu_nodes", str(play["hosts"])) is not None


def _imports(play: dict[str, Any]) -> list[tuple[str, str]]:
    return [_imported(task) for task in play["tasks"] if IMPORT in task]


def _imported(task: dict[str, Any]) -> tuple[str, str]:
    """The role, and the file of its tasks."""
    return task[IMPORT]["name"].rpartition(".")[2], task[IMPORT].get("tasks_from", "main") + ".yml"


def test_a_gpu_node_as_asked_has_no_more_host_tasks_than_the_goal_of_site_yml() -> None:
    found = site_host_tasks(site_plays())
    assert len(found) <= GOAL_SITE_HOST_TASKS, found
    # Each part is in it: a role that is left out is no saving.
    roles = {line.partition(":")[0] for line in found}
    assert {*STACK, "preflight", "api_loadbalancer", "host_metrics", "node_dns", "node_traffic", "kubelet"} - roles == {
        # Once for the whole fleet.
        "nvidia_device_plugin"
    }


def test_no_task_of_a_node_is_skipped_on_most_of_them() -> None:
    """A task with a condition costs a worker where it is skipped, too; `meta: end_role` costs none."""
    conditions: list[str] = []
    for role, name in {entry for play in site_plays() if _of_nodes(play) for entry in _imports(play)}:
        tasks = [*_flat(yaml.safe_load((REPOSITORY / "roles" / role / "tasks" / name).read_text()))]
        conditions += [f"{role}: {task['name']}" for task in tasks if "when" in task and not _free(task)]
    assert sorted(conditions) == [
        "api_loadbalancer: Find the interface that leads to the other balancers",
        "container_runtime: Install containerd 2",
        "gpu_burnin: Bring the runs that are under way to their end",
        "gpu_burnin: Install gpu-burnin on hosts that lack this build and have no mirror for it",
        "node_dns: Serve names on the node where the fleet asks for it",
        "node_traffic: Count the traffic by class",
        "nvidia_container_toolkit: Install the toolkit, generate the CDI specification and compare it with the GPUs",
        # In check mode alone.
        "pod_network: Apply the configured routes and rules",
        # Past the end of the role for nodes with static routes.
        "pod_network: End BGP, which the inventory asks for no more",
        "pod_network: Have the routes come by BGP",
    ]


def _flat(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield task
        yield from _flat(task.get("block", []))


def _free(task: dict[str, Any]) -> bool:
    return "ansible.builtin.meta" in task or bool(task.get("run_once"))


def test_a_task_too_many_is_found() -> None:
    plays = site_plays()
    nodes = next(play for play in plays if play["hosts"] == "gpu_nodes")
    nodes["tasks"].append({"name": "Look", "ansible.builtin.command": "true", "when": False})
    assert f"{nodes['name']}: Look" in site_host_tasks(plays)
    assert len(site_host_tasks(plays)) == len(site_host_tasks(site_plays())) + 1


def test_the_node_stack_has_no_more_host_tasks_than_its_goal() -> None:
    found = [task for name in STACK for task in host_tasks(REPOSITORY / "roles" / name)]
    assert len(found) <= GOAL_HOST_TASKS, found


def test_no_play_of_the_stack_has_tasks_beside_its_roles() -> None:
    """A role `fleet` has none; what else a play with a role of the stack has would not be counted above."""
    of_stack = [play for play in site_plays() if set(STACK) & set(roles_of(play))]
    assert {role for play in of_stack for role in roles_of(play)} == {*STACK, "fleet"}
    assert [play["gather_facts"] for play in of_stack] == [False] * len(of_stack)
    assert not any(play.get(key) for play in of_stack for key in ("pre_tasks", "post_tasks"))
    assert all(IMPORT in task for play in of_stack for task in play["tasks"])
    assert not (REPOSITORY / "roles/fleet/tasks").exists()


def test_no_role_of_site_yml_validates_what_its_first_play_has_validated() -> None:
    """That would be one task more for each host and role with a specification; the role `fleet` has none of `main`."""
    imports = [task[IMPORT] for play in site_plays() for task in play.get("tasks", []) if IMPORT in task]
    assert [found for found in imports if found.get("rolespec_validate") is not False] == []
    assert {entry["role"] for play in site_plays() for entry in play["roles"]} == {"muster.fleet.fleet"}
    fleet = yaml.safe_load((REPOSITORY / "roles/fleet/meta/argument_specs.yml").read_text())["argument_specs"]
    assert "main" not in fleet


TASKS = (
    Task("Tune the nodes", "node_tuning", "validate", "v", 10, 1.0, 2.0),
    Task("Tune the nodes", "node_tuning", "tune", "t", 10, 2.0, 3.0),
    Task("Prepare the nodes", "kube_proxy", "run", "r", 5, 4.0, 1.0),
    Task("Prepare the nodes", "", "one", "o", 1, 0.5, 0.5),
)


def test_shares_are_of_a_node_and_of_each_role() -> None:
    assert ansible_cost.shares(TASKS, 10) == [
        Share("Tune the nodes: node_tuning", 2.0, 0.3, 0.5),
        Share("Prepare the nodes: kube_proxy", 0.5, 0.4, 0.1),
        Share("Prepare the nodes", 0.1, 0.05, 0.05),
    ]
    assert ansible_cost.stack(TASKS, 10) == Share("node stack", 2.0, 0.3, 0.5)


def test_every_name_has_an_address_of_the_lab_and_a_range_and_connection_of_its_own(tmp_path: Path) -> None:
    lab = yaml.safe_load((REPOSITORY / "inventory/lab/hosts.yml").read_text())["all"]["children"]["gpu_nodes"]["hosts"]
    (tmp_path / "lab").mkdir()
    path = ansible_cost.names_inventory(tmp_path, 100, tmp_path / "lab")
    nodes = yaml.safe_load((path / "hosts.yml").read_text())["all"]["children"]["gpu_nodes"]["hosts"]
    assert len(nodes) == 100
    assert {node["ansible_host"] for node in nodes.values()} == {node["ansible_host"] for node in lab.values()}
    for key in ("pod_network_range", "ansible_control_path"):
        assert len({node[key] for node in nodes.values()}) == 100
    state = yaml.safe_load((path / "group_vars/all.yml").read_text())["fleet_state_dir"]
    assert Path(state).parent == tmp_path


def test_the_run_has_all_plays_of_site_yml_and_goes_on_after_preflight(tmp_path: Path) -> None:
    certificates, whole = (yaml.safe_load(path.read_text()) for path in ansible_cost.site_books(tmp_path))
    site = site_plays()
    assert [play["name"] for play in whole] == [play["name"] for play in site]
    assert [play["hosts"] for play in certificates] == ["localhost"]
    assert {play["name"] for play in whole if play.get("ignore_errors")} == {
        play["name"] for play in site if play.get("tags") == ["preflight"]
    }


def test_a_report_has_figure_and_goal() -> None:
    site = ansible_cost.Run(10, 9.0, 8.0, 0.2, TASKS)
    text = ansible_cost.report(site, ansible_cost.Run(10, 1.5, 1.0, 0.0, ()))
    rows = {line.rsplit(maxsplit=3)[0].strip(): line.split()[-3:] for line in text.splitlines() if line.strip()}
    assert rows["site.yml for each node, net of an empty play"] == ["2.6", "750", "700"]
    assert rows["the node stack of it"] == ["2.0", "300", "500"]
    assert rows["its goal"][:2] == ["12.0", "1000"]


@pytest.mark.parametrize(
    ("host_tasks", "cpu_s", "code", "words"),
    [
        (12.0, 1.0, 0, "kept: the goal of the node stack, 12 host-tasks and 1.0 CPU s for each node"),
        (12.1, 0.5, 1, "missed: the goal of the node stack, 12 host-tasks and 1.0 CPU s for each node: at 100 names"),
        (11.0, 1.02, 1, "at 100 names 11.0 host-tasks, 1.02 CPU s"),
    ],
)  # fmt: skip
def test_the_benchmark_ends_with_1_and_says_so_when_the_goal_is_missed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    host_tasks: float,
    cpu_s: float,
    code: int,
    words: str,
) -> None:
    """Runs are made up, and at 100 names cost what the case says; the rest is the benchmark's own."""

    def run(book: Path, inventory: Path, names: int, *options: str) -> ansible_cost.Run:
        per_node = (host_tasks, cpu_s) if names == 100 else (11.0, 0.5)
        hosts, total_s = round(per_node[0] * names), per_node[1] * names
        task = Task("Install", "nvidia_driver", "driver", "d", hosts, total_s, 1.0)
        # The play of the certificates, an empty one, the whole, and the steps, whose first task opens the connection.
        return ansible_cost.Run(names, total_s, 1.0, 0.0, (task, task) if "step" in str(book) else (task,))

    for name, stand_in in (
        ("converge", lambda: tmp_path),
        ("_adopt_orphans", lambda: None),
        ("names_inventory", lambda folder, names, state: folder),
        ("site_books", lambda folder: (folder, folder)),
        ("read_groups", lambda inventories: {"gpu_nodes": ["a"]}),
        ("run", run),
    ):
        monkeypatch.setattr(ansible_cost, name, stand_in)
    assert ansible_cost.main() == code
    assert words in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_a_task_has_its_hosts_and_its_processor_time(tmp_path: Path) -> None:
    """The callback of the benchmark in a real run, on hosts that are this machine."""
    inventory = tmp_path / "hosts.yml"
    nodes = {name: {"ansible_connection": "local"} for name in ("a", "b")}
    inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": nodes}}))
    said = {"ansible.builtin.debug": {"msg": "x"}}
    book = ansible_cost.book(tmp_path, "b", [said, {**said, "when": "inventory_hostname == 'a'"}])
    run = ansible_cost.run(book, inventory, 2)
    assert [task.hosts for task in run.tasks] == [2, 2]
    assert 0 < sum(task.cpu_s for task in run.tasks) < run.cpu_s
    assert run.ssh_cpu_s == 0
