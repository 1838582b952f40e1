"""What follows from a problem that is known is no second one."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.plugin_utils.findings import Findings


def test_a_value_made_of_a_variable_that_is_blamed_is_not_told() -> None:
    findings = Findings()
    findings.add("gpu-1", "the address is wrong", "correct it", "all.yml:1", "fleet_api_address", ["fleet_api_address"])
    for host in ("gpu-1", "gpu-2"):
        findings.add(host, "the URL is wrong", "correct it", "all.yml:2", "kubelet_api_url", ["fleet_api_address"])
    told = [(problem.message, problem.hosts) for problem in findings.problems()]
    assert told == [("the address is wrong", ("gpu-1",)), ("the URL is wrong", ("gpu-2",))]


def test_a_template_that_reads_a_secret_names_the_vault_s_options() -> None:
    findings = Findings()
    findings.add_unresolved("gpu-1", "a", "Attempting to decrypt but no vault secrets found.", frozenset({"a", "b"}))
    findings.add_unresolved("gpu-1", "c", "'d' is undefined.", frozenset({"c", "d"}))
    assert [problem.fix for problem in findings.problems()] == [
        "add --ask-vault-pass, or --vault-password-file FILE",
        "set the variable that it refers to, or correct it",
    ]
