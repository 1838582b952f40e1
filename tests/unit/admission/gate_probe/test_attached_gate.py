"""Whether the gate's objects are those that were written: what an API server adds is no change, all else is."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.admission.client import ApiError
from gpu_burnin.admission.gate_probe import attached
from gpu_burnin.admission.gate_probe.attached import WARNED_S, Gate, Watch, differs, ending
from gpu_burnin.admission.service.http import Pages
from gpu_burnin.admission.webhook.certificate import AUTHORITY_LASTS, make_authority, renew_authority
from gpu_burnin.api.attached import AUTHORITY_ENDS, GATE_EVENT_NAME, GATE_KEY, GATE_OPEN, WEBHOOK_AWAY
from gpu_burnin.fleet.attach.monitoring import objects, rules
from tests.support.clocks import PATIENCE_S

RULE = {"apiGroups": [""], "resources": ["nodes"]}
WANTED: dict[str, Any] = {
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [RULE]},
        "matchConditions": [{"name": "a", "expression": "true"}],
    }
}


def served(**changes: Any) -> dict[str, Any]:
    constraints: dict[str, Any] = {"matchPolicy": "Equivalent", "resourceRules": [{**RULE, "scope": "*"}]}
    constraints |= {"namespaceSelector": {}, "objectSelector": {}}
    return {
        "spec": {**WANTED["spec"], "matchConstraints": {**constraints, **changes.pop("constraints", {})}, **changes}
    }


@pytest.mark.parametrize(
    ("found", "place"),
    [
        (served(), ""),
        (served(failurePolicy="Ignore"), "spec.failurePolicy"),
        (served(constraints={"objectSelector": {"matchLabels": {"a": "b"}}}), "spec.matchConstraints.objectSelector"),
        (served(constraints={"excludeResourceRules": [RULE]}), "spec.matchConstraints.excludeResourceRules"),
        (served(matchConditions=[*WANTED["spec"]["matchConditions"], {"name": "b"}]), "spec.matchConditions"),
        (served(matchConditions=[{"name": "a", "expression": "false"}]), "spec.matchConditions[0].expression"),
        (served(paramKind={"kind": "X"}), "spec.paramKind"),
        ({}, "spec"),
    ],
)
def test_where_it_differs_is_named(found: dict[str, Any], place: str) -> None:
    assert differs(found, WANTED) == place


OPEN = Gate(("it is gone",), (), refused=False, changed=1)
SILENT = Gate((), ("it does not answer",))
HIDDEN = Gate((), ("you may not read it",), refused=True, changed=None)
CLOSED = Gate((), (), refused=True, changed=0)
FLEET = Path(__file__).resolve().parents[4] / "roles/fleet_monitoring/files/rules/gate.yml"


def watched(monkeypatch: pytest.MonkeyPatch, found: list[Gate], now_s: list[float]) -> Watch:
    monkeypatch.setattr(attached, "once", lambda *_: found.pop(0))
    return Watch(None, Path(), 60.0, lambda: now_s[0])  # type: ignore[arg-type]


def test_the_numbers_are_those_of_the_last_look_and_what_is_unknown_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, said = [1000.0], list[str]()
    watch = watched(monkeypatch, [CLOSED, CLOSED, OPEN, SILENT, HIDDEN, CLOSED], now_s)
    for page in (
        {"refused 1", "objects_changed 0", "checked_timestamp_seconds 1000"},
        {"refused 1", "objects_changed 0", "checked_timestamp_seconds 1060"},
        {"refused 0", "objects_changed 1", "checked_timestamp_seconds 1120"},
        # An old answer is none: the alert on its time fires.
        {"checked_timestamp_seconds 1120"},
        # Nor is one beside an object that somebody keeps from being read.
        {"refused 1", "checked_timestamp_seconds 1120"},
    ):
        watch.look(said.append)
        lines = watch.numbers().decode().splitlines()
        assert {line.removeprefix("muster_gate_") for line in lines if not line.startswith("#")} == page
        now_s[0] += 60.0
    watch.look(said.append)
    assert said == ["the gate is in force"] * 2


def test_a_probe_that_hangs_is_started_again_and_one_that_waits_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    watch = watched(monkeypatch, [], now_s)
    now_s[0] = 200.0
    assert watch.unhealthy() == ""
    now_s[0] = 481.0
    assert watch.unhealthy() == "no look has ended for 481 s"


def test_its_page_is_read_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch, [OPEN], [7.0])
    watch.look(lambda _: None)
    pages = Pages(("127.0.0.1", 0), watch.numbers, watch.unhealthy)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{pages.port}/metrics", timeout=PATIENCE_S) as answer:
            assert b"muster_gate_refused 0" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{pages.port}/leaderz", timeout=PATIENCE_S)
    finally:
        pages.close()


def test_what_the_api_server_does_not_say_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def find(self, path: str, _: str) -> dict[str, Any] | None:
            if path.endswith("b"):
                raise ApiError("it does not answer")
            return None

        def apply(self, *_: object) -> object:
            raise ApiError("it does not answer")

    def policy(name: str) -> dict[str, Any]:
        kind = "ValidatingAdmissionPolicy"
        return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}

    gate = attached.look(Api(), attached.Wanted([policy("a"), policy("b")], True))  # type: ignore[arg-type]
    assert (len(gate.wrong), len(gate.unknown), gate.refused, gate.changed) == (1, 2, None, 1)
    hidden = attached.look(Api(), attached.Wanted([policy("b")], True))  # type: ignore[arg-type]
    assert hidden.changed is None and hidden.wrong == ()


def test_the_alerts_are_the_fleets_by_name_and_read_what_the_probe_tells() -> None:
    fleet = {
        one["alert"]: one
        for group in yaml.safe_load(FLEET.read_text())["groups"]
        for one in group["rules"]
        if "alert" in one
    }
    [group] = rules()["groups"]
    ours = {one["alert"]: one for one in group["rules"]}
    assert ours["MusterGateOpen"]["expr"] == fleet["MusterGateOpen"]["expr"]
    ends = ours.pop(AUTHORITY_ENDS)
    assert ends["expr"].endswith(f"< {WARNED_S:.0f}") and ends["labels"] == {"severity": "ticket"}
    away = ours.pop(WEBHOOK_AWAY)
    assert away["expr"] == "muster_gate_webhook_taints == 0" and away["labels"] == {"severity": "page"}
    unanswered = ours.pop("MusterGateWebhookNotChecked")
    assert (unanswered["expr"], unanswered["for"]) == ("muster_gate_webhook_answered == 0", "15m")
    for name, rule in ours.items():
        assert (rule["labels"], rule["annotations"]["runbook"]) == (
            fleet[name]["labels"],
            fleet[name]["annotations"]["runbook"],
        )
    read, told = objects()
    assert told["spec"]["groups"] == [group]
    assert read["spec"]["podMetricsEndpoints"][0]["port"] == "http"


MADE = datetime(2026, 1, 1, tzinfo=UTC)
ENDS_S = (MADE + AUTHORITY_LASTS).timestamp()


def webhook(bundle: str) -> dict[str, Any]:
    hook = {"clientConfig": {"caBundle": base64.b64encode(bundle.encode()).decode()}}
    metadata = {"name": "muster-preflight-taint"}
    kind = "MutatingWebhookConfiguration"
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "webhooks": [hook]}


class Cluster:
    """Has this object, refuses the untainted Node, and keeps the events that are written. `taint` is what its webhook
    gives a GPU Node, None while that is away."""

    def __init__(self, there: dict[str, Any], taint: dict[str, str] | None = None) -> None:
        self.there, self.events, self.taint = there, list[dict[str, Any]](), taint
        # What keeps the first question of the gate from an answer, and that of the webhook.
        self.silence: ApiError | None = None
        self.others: ApiError | None = None
        self.open = False

    def find(self, *_: object) -> dict[str, Any]:
        return self.there

    def apply(self, path: str, document: dict[str, Any], _: str) -> dict[str, Any]:
        if f"/events/{GATE_EVENT_NAME}" in path:
            self.events.append(document)
            return document
        of_gpus = document["metadata"].get("labels") == GPU
        if refusal := (self.others if of_gpus else self.silence):
            raise refusal
        if of_gpus and self.taint is not None:
            return {**document, "spec": {"taints": [self.taint]}}
        if of_gpus and self.open:
            return document
        raise ApiError("muster-node-gate.attached refuses it", 403)


GPU = {"example.com/gpu": "yes"}


def test_a_webhook_that_adds_no_taint_is_told_though_the_gate_holds(tmp_path: Path) -> None:
    there = webhook(make_authority(MADE, "muster-webhook").certificate)
    (tmp_path / GATE_KEY).write_text(json.dumps({"labels": GPU, "mode": "enforcing", "objects": [there]}))
    cluster, said = Cluster(there, {"key": "muster.dev/preflight"}), list[str]()
    watch = Watch(cluster, tmp_path, 60.0, MADE.timestamp)  # type: ignore[arg-type]
    assert watch.look(said.append).exit_code == 0 and cluster.events == []
    assert "\nmuster_gate_webhook_taints 1\n" in watch.numbers().decode()
    cluster.taint = None
    assert watch.look(said.append).exit_code == 0
    assert cluster.events[-1]["reason"] == WEBHOOK_AWAY and "no GPU Node joins" in said[-1]
    assert "\nmuster_gate_webhook_taints 0\n" in watch.numbers().decode()
    # Where none is to add it, nothing is asked and nothing told.
    (tmp_path / GATE_KEY).write_text(json.dumps({"mode": "enforcing", "objects": [there]}))
    assert "\nmuster_gate_webhook_answered 1\n" in watch.numbers().decode()
    assert watch.look(said.append).tainted is None and len(cluster.events) == 1
    assert "\nmuster_gate_webhook_answered " not in watch.numbers().decode()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    there = webhook(make_authority(MADE, "muster-webhook").certificate)
    (tmp_path / GATE_KEY).write_text(json.dumps({"labels": GPU, "mode": "enforcing", "objects": [there]}))
    return Cluster(there)


def test_a_webhook_that_cannot_be_asked_for_says_nothing_of_the_gate(cluster: Cluster, tmp_path: Path) -> None:
    """A policy of others that denies such a Node would have made MusterGateNotChecked fire for good."""
    cluster.others, said = ApiError("policy of-others denied request: no labels of GPUs", 403), list[str]()
    watch = Watch(cluster, tmp_path, 60.0, MADE.timestamp)  # type: ignore[arg-type]
    gate = watch.look(said.append)
    assert (gate.exit_code, gate.unknown, gate.tainted, cluster.events) == (0, (), None, [])
    [sentence, in_force] = said
    assert "adds the taint is not known: policy of-others denied" in sentence and in_force == "the gate is in force"
    page = watch.numbers().decode()
    assert f"\nmuster_gate_checked_timestamp_seconds {MADE.timestamp():.0f}\n" in page
    assert "\nmuster_gate_refused 1\n" in page and "\nmuster_gate_webhook_taints " not in page
    assert "\nmuster_gate_webhook_answered 0\n" in page


def test_a_gate_that_cannot_be_asked_hides_nothing_of_the_webhook(cluster: Cluster, tmp_path: Path) -> None:
    cluster.silence = ApiError("policy of-others denied request", 403)
    gate = attached.look(cluster, attached.read_wanted(tmp_path))  # type: ignore[arg-type]
    assert (gate.refused, gate.tainted) == (None, False) and "no GPU Node joins" in attached.away(gate)
    # A GPU Node that comes in untainted: whatever else is not known, the gate is open.
    cluster.open = True
    gate = attached.look(cluster, attached.read_wanted(tmp_path))  # type: ignore[arg-type]
    assert (gate.refused, gate.exit_code, attached.away(gate)) == (False, 1, "")


def test_the_end_of_the_webhooks_authority_is_told_half_a_year_before(tmp_path: Path) -> None:
    there = webhook(make_authority(MADE, "muster-webhook").certificate)
    (tmp_path / GATE_KEY).write_text(json.dumps({"mode": "enforcing", "objects": [there]}))
    cluster, said, now_s = Cluster(there), list[str](), [ENDS_S - WARNED_S - 60.0]
    watch = Watch(cluster, tmp_path, 60.0, lambda: now_s[0])  # type: ignore[arg-type]
    assert watch.look(said.append).exit_code == 0 and cluster.events == []
    assert f"\nmuster_gate_authority_ends_timestamp_seconds {ENDS_S:.0f}\n" in watch.numbers().decode()
    now_s[0] += 120.0
    # The gate holds: what is told is no fault of today.
    assert watch.look(said.append).exit_code == 0
    [event] = cluster.events
    assert event["reason"] == AUTHORITY_ENDS and "ends on 2035-12-30" in event["message"]
    assert said == ["the gate is in force", event["message"]]
    now_s[0] = ENDS_S + 1.0
    watch.look(said.append)
    assert "has ended on 2035-12-30" in said[-1]
    # What is wrong today comes first.
    cluster.there = {**there, "webhooks": [*there["webhooks"], {}]}
    assert watch.look(said.append).exit_code == 1 and cluster.events[-1]["reason"] == GATE_OPEN


def test_of_two_authorities_the_new_one_counts_and_without_a_webhook_none_ends() -> None:
    old = make_authority(MADE, "muster-webhook")
    later = datetime(2035, 6, 1, tzinfo=UTC)
    both = renew_authority(old, later, "muster-webhook").certificate
    assert attached.authority_ends_s(webhook(both)) == (later + AUTHORITY_LASTS).timestamp()
    none: list[dict[str, Any]] = [{"webhooks": [{"clientConfig": {}}]}, {"spec": {}}]
    for one in (webhook(""), webhook("no certificate"), *none):
        assert attached.authority_ends_s(one) is None
    assert ending(CLOSED, ENDS_S) == ""
