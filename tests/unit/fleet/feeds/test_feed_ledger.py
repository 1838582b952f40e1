"""What the ledger says of nodes that plays let swing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Ask, NodeAdmission, Spec, document, parse
from gpu_burnin.api.remedies import DEFINITIONS
from gpu_burnin.fleet.feeds import ledger
from tests.support.fake_api import FakeApi, Refused

NAMES = Names()
NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
ANN = Ask("ann", "fan", "2026-11-28T11:00:00Z")


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    server.put("nodeadmissions", document(NodeAdmission("gpu-1", Spec(hold=ANN)), NAMES))
    yield server
    server.close()


def spec(api: FakeApi) -> Spec:
    return parse(api.objects["nodeadmissions"]["gpu-1"]).spec


def test_a_node_swings_until_its_waves_must_be_over_or_it_is_said_to_have_ended(api: FakeApi, tmp_path: Path) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    assert ledger.begin(kubeconfig, NAMES.domain, "gpu-1", 24.0, NOW) == ""
    why = "a play lets it swing its power"
    assert spec(api).swing == Ask("muster:provisioner", why, "2026-11-28T12:00:00.000Z", "2026-11-28T12:01:24.000Z")
    assert spec(api).hold == ANN
    assert ledger.begin(kubeconfig, NAMES.domain, "gpu-1", 24.0, NOW) == "", "one that a killed play left is replaced"
    assert ledger.end(kubeconfig, NAMES.domain, "gpu-1") == "" and spec(api) == Spec(hold=ANN)
    writes = len(api.bodies)
    assert ledger.end(kubeconfig, NAMES.domain, "gpu-1") == "" and len(api.bodies) == writes


def test_a_node_without_an_entry_is_none_of_the_scalers(api: FakeApi, tmp_path: Path) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    assert ledger.begin(kubeconfig, NAMES.domain, "gpu-2", 24.0) == ledger.end(kubeconfig, NAMES.domain, "gpu-2") == ""
    assert not api.bodies


def test_why_it_could_not_be_said(api: FakeApi, tmp_path: Path) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")

    def refuse(path: str) -> None:
        raise Refused(403, "forbidden: only the provisioner")

    api.before_write = refuse
    assert "cannot write the NodeAdmission of gpu-1: forbidden" in ledger.begin(kubeconfig, NAMES.domain, "gpu-1", 24.0)

    def race(path: str) -> None:
        raise Refused(409, "it has changed")

    api.before_write = race
    assert "it has changed" in ledger.begin(kubeconfig, NAMES.domain, "gpu-1", 24.0)
    api.close()
    said = ledger.begin(kubeconfig, NAMES.domain, "gpu-1", 24.0)
    assert "cannot read the NodeAdmission of gpu-1" in said and "check that the API servers" in said
    assert "there is no such file" in ledger.begin(tmp_path / "none", NAMES.domain, "gpu-1", 24.0)


def test_a_definition_that_keeps_less_is_told(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server drops fields that the definition does not have, and says nothing."""
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setattr(ledger.KubeApi, "patch", lambda *_: api.objects["nodeadmissions"]["gpu-1"])
    said = ledger.begin(kubeconfig, NAMES.domain, "gpu-1", 24.0)
    assert said == f"gpu-1: the definition of its NodeAdmission is of an older version; {DEFINITIONS}"
