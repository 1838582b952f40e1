"""Bringing a node to rest: what is stopped, what is waited for, what is ended, and when that is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import Output
from ansible_collections.muster.fleet.plugins.module_utils.host.systemd_unit import Unit
from ansible_collections.muster.fleet.plugins.module_utils.kube import node_rest
from ansible_collections.muster.fleet.plugins.modules.node_rest import ARGUMENT_SPEC

from gpu_burnin.api.levels import LEVELS
from gpu_burnin.engine.deadlines import deadlines
from gpu_burnin.settings.config import Config

ROLES = Path(__file__).resolve().parents[3] / "roles"
TASKS = "run/containerd/io.containerd.runtime.v2.task"


@dataclass
class Host:
    """A host with containers. `deaf` are those that SIGTERM does not end, `stuck` those that nothing ends."""

    root: Path
    enabled: tuple[str, ...] = (*node_rest.UNITS, node_rest.OBSERVERS)
    burns_s: float = 0.0
    deaf: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    commands: list[str] = field(default_factory=list)
    now_s: float = 0.0

    def container(self, name: str, namespace: str = "k8s.io") -> None:
        (self.root / TASKS / namespace / name).mkdir(parents=True)

    def __call__(self, command: Sequence[str], timeout_s: float = 30.0) -> Output:
        words = list(command)
        if words[:2] == ["systemctl", "show"]:
            active = "active" if self.now_s < self.burns_s else "inactive"
            return Output(0, f"LoadState=loaded\nActiveState={active}\n", "")
        self.commands.append(" ".join(words))
        if "kill" in words:
            name = words[-1]
            if name not in self.stuck and ("SIGKILL" in words or name not in self.deaf):
                (self.root / TASKS / words[2] / name).rmdir()
        return Output(0, "", "")

    def node(self) -> node_rest.Node:
        def show(name: str) -> Unit:
            on = name in self.enabled
            return Unit(name, on, "active" if on else "inactive", "", "", on, False, (), None)

        def sleep(seconds: float) -> None:
            self.now_s += seconds

        return node_rest.Node(self, show, self.root, lambda: self.now_s, sleep)


def test_everything_that_starts_by_itself_is_off_before_the_containers_end(tmp_path: Path) -> None:
    host = Host(tmp_path, deaf=("plugin",))
    host.container("pause")
    host.container("plugin")
    done = node_rest.rest(host.node(), 60, 30, act=True)
    assert done == [*(f"stop {unit}" for unit in (*node_rest.UNITS, node_rest.OBSERVERS)), "end 2 containers"]
    assert host.commands[:4] == [
        *(f"systemctl disable --now -- {unit}" for unit in node_rest.UNITS),
        f"systemctl stop -- {node_rest.OBSERVERS}",
    ]
    assert [command.split()[-2:] for command in host.commands[4:]] == [
        ["SIGTERM", "pause"],
        ["SIGTERM", "plugin"],
        ["SIGKILL", "plugin"],
    ]
    assert host.now_s >= 30


def test_a_node_at_rest_is_left_alone(tmp_path: Path) -> None:
    host = Host(tmp_path, enabled=())
    assert node_rest.rest(host.node(), 60, 30, act=True) == [] and host.commands == []


def test_check_mode_says_it_and_does_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path, burns_s=1e9)
    host.container("plugin")
    assert len(node_rest.rest(host.node(), 60, 30, act=False)) == 5 and host.commands == []


def test_a_burn_in_comes_to_its_end(tmp_path: Path) -> None:
    host = Host(tmp_path, burns_s=40.0)
    node_rest.rest(host.node(), 60, 30, act=True)
    assert host.now_s >= 40
    late = Host(tmp_path, burns_s=1e9)
    with pytest.raises(FleetError, match="a burn-in runs for more than 60 s"):
        node_rest.rest(late.node(), 60, 30, act=True)


@pytest.mark.parametrize(
    ("namespace", "stuck", "why"),
    [("moby", (), "moby/job runs and is no pod's"), ("k8s.io", ("job",), "these containers do not end: job")],
)
def test_what_does_not_end_is_named(tmp_path: Path, namespace: str, stuck: tuple[str, ...], why: str) -> None:
    host = Host(tmp_path, stuck=stuck)
    host.container("job", namespace)
    with pytest.raises(FleetError, match=why):
        node_rest.rest(host.node(), 60, 30, act=True)


def longest_s(asked_s: float = 0.0) -> float:
    """After which a run has given up, of the deepest level or of so many seconds, and after a wait for its waves."""
    return deadlines(max(asked_s, *(level.total_s for level in LEVELS.values()))).run_s + Config().wave_wait_s


def test_the_longest_burn_in_is_waited_for() -> None:
    assert ARGUMENT_SPEC["burnin_timeout_s"]["default"] > longest_s()


@pytest.mark.parametrize("given", [{}, {"gpu_burnin_extended_s": 1800}, {"gpu_burnin_extended_s": "86400"}])
def test_a_driver_upgrade_waits_for_the_longest_burn_in_of_its_inventory(given: dict[str, Any]) -> None:
    defaults = yaml.safe_load((ROLES / "driver_upgrade/defaults/main.yml").read_text())
    waits_s = jinja2.Template(str(defaults["driver_upgrade_burnin_timeout_s"])).render(given)
    assert float(waits_s) > longest_s(float(given.get("gpu_burnin_extended_s", 0)))
