"""The action side of power_grant: when a host's turn begins and ends, and what the ledger hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.muster.fleet.plugins.action.power_grant import ActionModule

from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, document
from gpu_burnin.fleet.feeds.limits import Limits, LimitsError
from gpu_burnin.fleet.feeds.turns import Turns
from tests.support.fake_api import FakeApi

Grant = Callable[..., Any]


@pytest.fixture
def grant(tmp_path: Path) -> Grant:
    """Grant waves to gpu-1, with a module that gives (or raises) this."""

    def run(module: dict[str, Any] | Exception, check_mode: bool = False, **more: Any) -> Any:
        action: Any = ActionModule.__new__(ActionModule)
        action._task = SimpleNamespace(check_mode=check_mode, name="Grant")
        action._display = SimpleNamespace(display=lambda text: None)

        def execute(**_: Any) -> dict[str, Any]:
            seen.append([one.node for one in turns(tmp_path).counted()])
            if isinstance(module, Exception):
                raise module
            return module

        seen: list[list[str]] = []
        action._execute_module = execute
        given = {
            "directory": str(tmp_path / "feeds"), "feed": "a", "feed_limits": {}, "other_feeds": 1, "waves_s": 24.0,
            "wait_s": 0, "kubeconfig": "", "domain": "muster.dev", **more,
        }  # fmt: skip
        return action._grant("gpu-1", given, {}), seen

    return run


def turns(folder: Path) -> Turns:
    return Turns(folder / "feeds", Limits(1))


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    server.put("nodeadmissions", document(NodeAdmission("gpu-1"), Names()))
    yield server
    server.close()


@pytest.mark.parametrize("state", ["none", "over", "given_up"])
def test_the_host_has_a_turn_while_the_module_runs(state: str, grant: Grant, tmp_path: Path) -> None:
    done, seen = grant({"changed": True, "waves": state})
    assert (done, seen) == ({"changed": True, "waves": state}, [["gpu-1"]])
    assert turns(tmp_path).counted() == []


@pytest.mark.parametrize(
    "module", [{"failed": True, "msg": "x"}, {"waves": "running"}, {"failed": True, "waves": "over"}]
)
def test_a_host_that_may_swing_on_keeps_its_turn(module: dict[str, Any], grant: Grant, tmp_path: Path) -> None:
    assert grant(module)[0] == module
    assert [one.node for one in turns(tmp_path).counted()] == ["gpu-1"]


def test_so_does_one_that_answers_no_more(grant: Grant, tmp_path: Path) -> None:
    with pytest.raises(AnsibleConnectionFailure):
        grant(AnsibleConnectionFailure("gone"))
    assert [one.node for one in turns(tmp_path).counted()] == ["gpu-1"]


def test_in_check_mode_nobody_takes_a_turn(grant: Grant, tmp_path: Path) -> None:
    assert grant({"changed": True, "waves": "waiting"}, check_mode=True) == (
        {"changed": True, "waves": "waiting"},
        [[]],
    )
    assert not (tmp_path / "feeds").exists()


def test_a_limit_that_is_none_grants_nothing(grant: Grant) -> None:
    with pytest.raises(LimitsError, match="gpu_burnin_wave_max_nodes is 0; give how many"):
        grant({"waves": "over"}, other_feeds=0)


def test_the_ledger_says_that_the_host_swings_and_that_it_does_no_more(
    api: FakeApi, grant: Grant, tmp_path: Path
) -> None:
    kubeconfig = str(api.kubeconfig(tmp_path / "kubeconfig"))
    assert grant({"waves": "over"}, kubeconfig=kubeconfig)[0] == {"waves": "over"}
    assert [[step["op"] for step in body] for _, body in api.bodies] == [["add"], ["remove"]]
    grant({"failed": True}, kubeconfig=kubeconfig)
    assert "swing" in api.objects["nodeadmissions"]["gpu-1"]["spec"], "its end is in it"


def test_without_a_ledger_the_host_swings_and_a_ledger_that_does_not_answer_is_a_warning(
    api: FakeApi, grant: Grant, tmp_path: Path
) -> None:
    assert grant({"waves": "over"}, kubeconfig=str(tmp_path / "none"))[0] == {"waves": "over"}
    kubeconfig = str(api.kubeconfig(tmp_path / "kubeconfig"))
    api.close()
    done, _ = grant({"waves": "over", "warnings": ["first"]}, kubeconfig=kubeconfig)
    first, second = done["warnings"]
    assert first == "first" and second.startswith("gpu-1: it swings its power, and the scaler does not know it: http")
