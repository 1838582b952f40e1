"""What the burn-in would refuse of its settings is refused by the inventory check, in the same words."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.plugin_utils.role_check import RULES


def found(name: str, value: Any) -> list[tuple[str, str]]:
    rules = [rule for rule in RULES["gpu_burnin"] if rule.variables == (f"gpu_burnin_{name}",)]
    assert rules
    return [finding for rule in rules for finding in rule.check(value)]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("checks", ["gem", "hbm"], "gpu_burnin_checks names gem, which is no check"),
        (
            "extended_for_new",
            "2hours",
            "gpu_burnin_extended_for_new must be a duration such as 90s, 30m, 2h or 1d, not '2hours'",
        ),
        ("watch_poll", "soon", "gpu_burnin_watch_poll must be a duration such as 90s, 30m, 2h or 1d, not 'soon'"),
        ("kernel_log", "log", "gpu_burnin_kernel_log must be auto or an absolute path, not 'log'"),
        ("metrics_file", "a.prom", "gpu_burnin_metrics_file must be an absolute path, not 'a.prom'"),
    ],
)
def test_a_value_that_the_burnin_refuses(name: str, value: Any, message: str) -> None:
    ((said, fix),) = found(name, value)
    assert said == message and fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checks", []),
        ("checks", ["gemm", "hbm"]),
        ("checks", "gemm,hbm"),
        ("extended_for_new", ""),
        ("extended_for_new", "2h"),
        ("watch_poll", "30s"),
        ("kernel_log", "auto"),
        ("metrics_file", ""),
        ("expect", {}),
        ("expect", {"gpus": "8"}),
        ("dcgm", "yes"),
        ("shapes", {"gemm_m": 64}),
    ],
)
def test_a_value_that_fits(name: str, value: Any) -> None:
    assert found(name, value) == []


@pytest.mark.parametrize(
    ("new", "longest", "said"),
    [
        ("3h", 7200, "gpu_burnin_extended_for_new is 3h, longer than gpu_burnin_extended_s (7200 s)"),
        ("121m", "7200", "gpu_burnin_extended_for_new is 121m, longer than"),
        ("2h", 7200, ""),
        ("", 60, ""),
        # Said by other rules.
        ("soon", 60, ""),
        ("2h", None, ""),
    ],
)
def test_an_extended_run_for_new_gpus_is_no_longer_than_plays_wait_for(new: str, longest: Any, said: str) -> None:
    (rule,) = (rule for rule in RULES["gpu_burnin"] if len(rule.variables) == 2)
    assert rule.variables == ("gpu_burnin_extended_for_new", "gpu_burnin_extended_s")
    findings = list(rule.check(new, longest))
    assert [message.startswith(said) for message, _ in findings] == ([True] if said else [])
    assert all("raise gpu_burnin_extended_s to" in fix for _, fix in findings)


def test_a_text_among_expectations_is_read_too() -> None:
    ((said, fix),) = found("expect", {"driver_version": "new"})
    assert said.startswith("gpu_burnin_expect.driver_version must be") and said.endswith(", not 'new'") and fix
