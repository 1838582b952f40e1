"""The Ansible modules csr_approver and node_admission around the rules: parameters, results, check mode, failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.muster.fleet.plugins.modules import csr_approver, node_admission

from gpu_burnin.node.evidence import canonical_json
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import Signer, make_node
from tests.support.csr_helpers import client_csr, kubelet
from tests.support.fake_api import FakeApi

RunModule = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> RunModule:
    """Runs a module's main() and gives its exit code and its JSON result."""

    def run(main: Callable[[], None], check: bool = False, **parameters: Any) -> tuple[int, dict[str, Any]]:
        with patch_module_args({**parameters, "_ansible_check_mode": check}), pytest.raises(SystemExit) as end:
            main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return int(end.value.code or 0), result

    return run


@pytest.fixture
def admission(api: FakeApi, signer: Signer, tmp_path: Path) -> dict[str, Any]:
    return {
        "kubeconfig": str(api.kubeconfig(tmp_path / "kubeconfig")),
        "nodes": [{"name": "gpu-1", "address": "10.0.0.1"}],
        "known_hosts": str(signer.known_hosts),
        "ledger_dir": str(tmp_path / "admission"),
        # The statements of the tests are of one fixed day.
        "evidence_ttl_s": 1e9,
        "wait_s": 0,
    }


def test_node_admission_admits_then_changes_nothing(
    run_module: RunModule, admission: dict[str, Any], api: FakeApi, signer: Signer
) -> None:
    api.put_node(make_node())
    signer.publish(api, finished_at="2020-01-01T00:00:00Z")
    code, would = run_module(node_admission.main, check=True, **admission)
    assert (code, would["changed"], would["nodes"][0]["action"], api.writes()) == (0, True, "admit", [])
    code, done = run_module(node_admission.main, expect=["gpu-1"], **admission)
    [node] = done["nodes"]
    assert (code, done["changed"], node["state"], node["action"]) == (0, True, "ready", "admit")
    assert node["reasons"][0]["code"] == "PASS"
    for check in (False, True):
        code, again = run_module(node_admission.main, check=check, **admission)
        assert (code, again["changed"], again["nodes"][0]["action"]) == (0, False, "nothing")


def test_a_held_node_is_a_result(
    run_module: RunModule, admission: dict[str, Any], api: FakeApi, signer: Signer
) -> None:
    api.put_node(make_node())
    signer.publish(api, verdict=Verdict.FAIL, finished_at="2020-01-01T00:00:00Z")
    code, done = run_module(node_admission.main, expect=["gpu-1"], **admission)
    assert (code, done["nodes"][0]["state"], done["nodes"][0]["verdict"]) == (0, "held", "fail")


def test_an_expected_node_that_does_not_come_fails_with_what_is_missing(
    run_module: RunModule, admission: dict[str, Any]
) -> None:
    code, done = run_module(node_admission.main, expect=["gpu-1"], **admission)
    assert code == 1 and "gpu-1 has not registered" in done["msg"]
    code, done = run_module(node_admission.main, check=True, expect=["gpu-1"], **admission)
    assert (code, done["nodes"][0]["state"]) == (0, "absent")


def test_an_expected_name_that_is_no_node_is_refused(run_module: RunModule, admission: dict[str, Any]) -> None:
    code, done = run_module(node_admission.main, expect=["gpu-7"], **admission)
    assert code == 1 and "gpu-7" in done["msg"]


def test_csr_approver_approves_then_changes_nothing(run_module: RunModule, api: FakeApi, tmp_path: Path) -> None:
    api.csrs["csr-client"] = client_csr()
    kubelet(api)
    parameters = {
        "kubeconfig": str(api.kubeconfig(tmp_path / "kubeconfig")),
        "nodes": [{"name": "gpu-1", "addresses": ["10.0.0.1"]}],
        "wait_for": ["gpu-1"],
        "wait_s": 20,
    }
    code, would = run_module(csr_approver.main, check=True, **parameters)
    assert (code, would["changed"], api.writes()) == (0, True, [])
    code, done = run_module(csr_approver.main, **parameters)
    assert code == 0 and [a["csr"] for a in done["approved"]] == ["csr-client", "csr-serving"]
    code, again = run_module(csr_approver.main, **parameters)
    assert (code, again["changed"], again["missing"]) == (0, False, {})


def test_a_node_that_says_its_gate_is_closed_is_held(
    run_module: RunModule, admission: dict[str, Any], api: FakeApi, signer: Signer
) -> None:
    api.put_node(make_node())
    signer.publish(api)
    [node] = admission["nodes"]
    _, done = run_module(node_admission.main, **{**admission, "nodes": [{**node, "gate_closed": "run 6 has begun"}]})
    assert done["nodes"][0]["reasons"][0]["code"] == "GATE_CLOSED"
    _, done = run_module(node_admission.main, **admission)
    assert done["nodes"][0]["state"] == "ready"


def test_csr_approver_fails_with_what_is_missing(run_module: RunModule, api: FakeApi, tmp_path: Path) -> None:
    code, done = run_module(
        csr_approver.main,
        kubeconfig=str(api.kubeconfig(tmp_path / "kubeconfig")),
        nodes=[{"name": "gpu-1", "addresses": ["10.0.0.1"]}],
        wait_for=["gpu-1"],
        wait_s=0,
    )
    assert code == 1 and "gpu-1: kubelet has not registered" in done["msg"]


def test_an_address_that_is_none_is_one_sentence(run_module: RunModule, api: FakeApi, tmp_path: Path) -> None:
    code, done = run_module(
        csr_approver.main,
        kubeconfig=str(api.kubeconfig(tmp_path / "kubeconfig")),
        nodes=[{"name": "gpu-1", "addresses": ["gpu-1.example.org"]}],
    )
    assert code == 1 and "gpu-1.example.org" in done["msg"] and "addresses" in done["msg"]


def test_results_are_plain_json(run_module: RunModule, admission: dict[str, Any], api: FakeApi) -> None:
    api.put_node(make_node())
    _, done = run_module(node_admission.main, **admission)
    assert json.loads(canonical_json(done["nodes"]))[0]["reasons"][0]["code"] == "EVIDENCE_MISSING"
