"""What the probe makes of an API server's answers, and that none of them is taken for a gate that holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi
from gpu_burnin.admission.gate_probe import numbers
from gpu_burnin.admission.gate_probe import probe as module
from gpu_burnin.admission.gate_probe.ask import Gate, NotAsked, probe
from gpu_burnin.admission.gate_probe.state import State
from tests.support.gate_answers import HASH, OTHER, REFUSED, Api, line

RIGHT = line("ValidatingAdmissionPolicy", HASH)


def ask_gate(folder: Path, answer: object, metrics: str | Exception = RIGHT) -> Gate:
    (folder / "policy.hash").write_text(f"{HASH}\n")
    return probe(cast(KubeApi, Api(answer, metrics)), folder)


def test_refused_by_the_gates_name(tmp_path: Path) -> None:
    assert ask_gate(tmp_path, ApiError(REFUSED, 403)) == Gate(True, HASH, HASH)


def test_not_refused(tmp_path: Path) -> None:
    gate = ask_gate(tmp_path, {"metadata": {"name": "muster-gate-probe"}})
    assert not gate.refused and not gate.in_force


@pytest.mark.parametrize(
    "answer",
    [
        ApiError("nodes is forbidden by RBAC", 403),
        ApiError(REFUSED, 500),
        ApiError("no answer"),
        Conflict("changed"),
        {"metadata": {"resourceVersion": "7"}},
    ],
)
def test_no_answer_is_none(tmp_path: Path, answer: object) -> None:
    with pytest.raises(NotAsked) as error:
        ask_gate(tmp_path, answer)
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("metrics", "loaded"),
    [
        (line("ValidatingAdmissionPolicy", OTHER), OTHER),
        (line("MutatingAdmissionPolicy", OTHER) + line("ValidatingAdmissionPolicy", HASH), HASH),
        (line("MutatingAdmissionPolicy", HASH), ""),
        ("", ""),
    ],
)
def test_the_policies_that_it_has_loaded(tmp_path: Path, metrics: str, loaded: str) -> None:
    gate = ask_gate(tmp_path, ApiError(REFUSED, 403), metrics)
    assert (gate.loaded, gate.in_force) == (loaded, loaded == HASH)


@pytest.mark.parametrize("content", [None, "", "sha256:short", "\xff"])
def test_without_what_was_installed_nothing_is_compared(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "policy.hash").write_text(content, encoding="latin-1")
    with pytest.raises(NotAsked, match=r"policy\.hash"):
        probe(cast(KubeApi, Api(ApiError(REFUSED, 403), "")), tmp_path)


OPEN: dict[str, Any] = {"metadata": {"name": "muster-gate-probe"}}


def test_an_open_gate_is_open_though_its_policies_cannot_be_compared(tmp_path: Path) -> None:
    """A member of etcd that is away keeps /metrics from an answer in one look of three."""
    gate = ask_gate(tmp_path, OPEN, ApiError("no answer"))
    (tmp_path / "policy.hash").unlink()
    assert gate == Gate(False, "", "") == probe(cast(KubeApi, Api(OPEN, "")), tmp_path)
    page = numbers.text(gate, {}, State())
    assert "\nmuster_gate_refused 0\n" in page and "\nmuster_gate_policy_expected{" not in page
    with pytest.raises(NotAsked):
        ask_gate(tmp_path, ApiError(REFUSED, 403), ApiError("no answer"))


@pytest.mark.parametrize(("answer", "code", "refused"), [(ApiError(REFUSED, 403), 3, 1), (OPEN, 1, 0)])
def test_leases_that_cannot_be_read_hide_no_gate(
    answer: object, code: int, refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.hash").write_text(f"{HASH}\n")
    (tmp_path / "audit.log").touch()
    api = Api(answer, RIGHT)
    monkeypatch.setattr(module, "KubeApi", lambda *_, **__: api)
    said, metrics = list[str](), tmp_path / "gate.prom"
    place = module.Place(tmp_path / "none", tmp_path, tmp_path / "audit.log", tmp_path, metrics)
    assert module.once(place, said.append, 7.0) == code
    assert said[0] == "leases is forbidden by RBAC"
    page = metrics.read_text()
    assert f"\nmuster_gate_refused {refused}\n" in page and "\nmuster_gate_checked_timestamp_seconds 7\n" in page


def test_numbers_of_no_answer_have_none_of_the_gate() -> None:
    page = numbers.text(None, {}, State(gate_checked_s=5.0))
    assert "muster_gate_refused" not in page and "muster_gate_policy" not in page
    assert "\nmuster_gate_checked_timestamp_seconds 5\n" in page
    # A counter that only appears with its first count could not be seen to rise.
    assert '\nmuster_audit_impersonations_total{user="muster:admitter"} 0\n' in page


def test_numbers_without_loaded_policies_name_the_installed() -> None:
    page = numbers.text(Gate(False, "", HASH), {}, State())
    assert "\nmuster_gate_refused 0\n" in page
    assert "\nmuster_gate_policy_hash{" not in page
    assert f'\nmuster_gate_policy_expected{{hash="{HASH}"}} 1\n' in page
