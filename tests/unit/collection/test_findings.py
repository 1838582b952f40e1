"""What follows from a problem that is known is no second one."""

from __future__ import annotations

import pytest
from ansible_collections.muster.fleet.plugins.plugin_utils.findings import Findings


@pytest.mark.parametrize("order", [1, -1], ids=["its cause before it", "its cause behind it"])
def test_a_value_made_of_a_variable_that_is_blamed_is_not_told(order: int) -> None:
    findings = Findings()
    reads = ["fleet_api_address"]
    address = ("gpu-1", "the address is wrong", "correct it", "all.yml:1", "fleet_api_address", reads)
    url = ("the URL is wrong", "correct it", "all.yml:2", "kubelet_api_url", reads)
    for finding in [address, *((host, *url) for host in ("gpu-1", "gpu-2"))][::order]:
        findings.add(*finding)
    told = {problem.message: problem.hosts for problem in findings.problems()}
    assert told == {"the address is wrong": ("gpu-1",), "the URL is wrong": ("gpu-2",)}


def test_a_template_that_reads_a_secret_names_the_vault_s_options() -> None:
    findings = Findings()
    findings.add_unresolved("gpu-1", "a", "Attempting to decrypt but no vault secrets found.", frozenset({"a", "b"}))
    findings.add_unresolved("gpu-1", "c", "'d' is undefined.", frozenset({"c", "d"}))
    assert [problem.fix for problem in findings.problems()] == [
        "add --ask-vault-pass, or --vault-password-file FILE",
        "set the variable that it refers to, or correct it",
    ]
