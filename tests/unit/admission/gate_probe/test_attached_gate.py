"""Whether the gate's objects are those that were written: what an API server adds is no change, all else is."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.admission.gate_probe.attached import differs

RULE = {"apiGroups": [""], "resources": ["nodes"]}
WANTED: dict[str, Any] = {
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [RULE]},
        "matchConditions": [{"name": "a", "expression": "true"}],
    }
}


def served(**changes: Any) -> dict[str, Any]:
    constraints = {"matchPolicy": "Equivalent", "resourceRules": [{**RULE, "scope": "*"}]}
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
