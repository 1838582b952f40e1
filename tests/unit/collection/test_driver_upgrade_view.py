"""What playbooks/driver_upgrade.yml makes of the results of the stack's roles: the role's real variables, rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = Path(__file__).resolve().parents[3] / "roles/driver_upgrade"
WAITS = "it would change, and kubelet runs"
FOUND: dict[str, dict[str, Any]] = {
    "nvidia_driver_found": {
        "held": "", "waits": "", "reboot": "", "steps": [], "problems": [], "driver": {"loaded": "580.105.08"},
    },
    "nvidia_fabricmanager_found": {"held": "", "waits": ""},
    "nvidia_dcgm_found": {"held": "", "waits": ""},
    "nvidia_container_toolkit_found": {"held": "", "waits": ""},
}  # fmt: skip
PARTS = {
    "driver": "nvidia_driver_found", "fabric": "nvidia_fabricmanager_found", "dcgm": "nvidia_dcgm_found",
    "containers": "nvidia_container_toolkit_found",
}  # fmt: skip
SKIPPED = {"changed": False, "skipped": True, "skip_reason": "Conditional result was False"}
LOST = {"unreachable": True, "msg": "Connection refused", "changed": False}


def rendered(name: str, **found: dict[str, Any]) -> Any:
    """A variable of the role, with the roles' results changed so."""
    own = {key: _trusted(value) for key, value in yaml.safe_load((ROLE / "vars/main.yml").read_text()).items()}
    host = {"inventory_hostname": "gpu-1", "fleet_nvidia_source": "nvidia", "fleet_nvidia_driver_version": "580.105.08"}
    return Templar(loader=DataLoader(), variables={**host, **FOUND, **found, **own}).template(own[name])


def _trusted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _trusted(one) for key, one in value.items()}
    return trust_as_template(value) if isinstance(value, str) else value


def with_result(part: str, **changes: Any) -> dict[str, dict[str, Any]]:
    return {PARTS[part]: FOUND[PARTS[part]] | changes}


def test_a_host_that_is_as_asked_differs_in_nothing() -> None:
    assert rendered("__driver_upgrade_view") == {
        "name": "gpu-1", "source": "nvidia", "wanted": "580.105.08", "loaded": "580.105.08", "differs": "",
        "cannot": "", "lacks": "",
    }  # fmt: skip
    assert set(rendered("__driver_upgrade_held").values()) == {""}


@pytest.mark.parametrize("part", PARTS)
def test_what_waits_in_each_part_is_a_difference(part: str) -> None:
    view = rendered("__driver_upgrade_view", **with_result(part, waits=WAITS))
    assert (view["differs"], view["cannot"]) == (WAITS, "")


@pytest.mark.parametrize("changes", [{"reboot": "another module is loaded"}, {"steps": ["install 580", "load it"]}])
def test_a_driver_that_differs_on_a_host_without_work(changes: dict[str, Any]) -> None:
    differs = rendered("__driver_upgrade_view", **with_result("driver", **changes))["differs"]
    assert differs in ("another module is loaded", "install 580")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_could_not_be_looked_at_leaves_the_host(part: str) -> None:
    view = rendered("__driver_upgrade_view", **{PARTS[part]: LOST}, **with_waits_elsewhere(part))
    assert (view["differs"], view["cannot"]) == ("", "it could not be looked at: Connection refused")


def test_what_no_source_has_is_told_and_a_host_that_is_lost_meanwhile_is_left() -> None:
    waits = with_result("driver", waits=WAITS)
    view = rendered("__driver_upgrade_view", **waits, __driver_upgrade_offered={"changed": False, "lacks": "no 580.99"})
    assert (view["differs"], view["cannot"], view["lacks"]) == (WAITS, "", "no 580.99")
    view = rendered("__driver_upgrade_view", **waits, __driver_upgrade_offered=LOST)
    assert view["cannot"] == "it could not be looked at: Connection refused"
    view = rendered("__driver_upgrade_view", __driver_upgrade_offered=SKIPPED)
    assert (view["cannot"], view["lacks"]) == ("", "")


def with_waits_elsewhere(part: str) -> dict[str, dict[str, Any]]:
    return with_result("dcgm" if part != "dcgm" else "fabric", waits=WAITS)


def test_a_specification_that_somebody_else_makes_is_no_difference_and_no_doubt() -> None:
    view = rendered("__driver_upgrade_view", nvidia_container_toolkit_found=SKIPPED)
    assert (view["differs"], view["cannot"]) == ("", "")
    assert rendered("__driver_upgrade_held", nvidia_container_toolkit_found=SKIPPED)["containers"] == ""


@pytest.mark.parametrize("part", ["fabric", "dcgm", "containers"])
def test_what_was_not_changed_though_the_host_is_out_of_work_keeps_it_out(part: str) -> None:
    held = rendered("__driver_upgrade_held", **with_result(part, waits=WAITS))
    assert {name: why for name, why in held.items() if why} == {part: WAITS}
    lost = {PARTS[part]: LOST}
    assert rendered("__driver_upgrade_held", **lost)[part] == "Connection refused"
    assert rendered("__driver_upgrade_lost", **lost) == "Connection refused"


def test_the_upgrade_changes_what_its_plan_looks_at() -> None:
    """One list of roles, which the plan applies in check mode alone."""
    (change,) = yaml.safe_load((ROLE / "tasks/main.yml").read_text())
    for tasks, apply in (
        (yaml.safe_load((ROLE / "tasks/plan.yml").read_text()), {"check_mode": True}),
        (change["block"], None),
    ):
        (stack,) = (task for task in tasks if task.get("loop") == "{{ __driver_upgrade_stack }}")
        assert stack["ansible.builtin.include_role"].get("apply") == apply
    assert len(yaml.safe_load((ROLE / "vars/main.yml").read_text())["__driver_upgrade_stack"]) == len(PARTS)
