"""The objects of attach mode with a mark for each value of the chart, and what Helm puts in place of the marks. Pure.

`parts` is run with marks for texts, once for each way in which values change what there is, and the results are merged.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_burnin.api.attached import (
    ATTACHED_CONFIG,
    ATTACHED_KEY,
    GATE_CONFIG,
    GATE_KEY,
    WEBHOOK,
    GpuNodes,
    Mode,
)
from gpu_burnin.fleet.attach.manifests import Parts, parts
from gpu_burnin.fleet.attach.settings import POLICY_TAINTS, WEBHOOK_TAINTS, Settings
from gpu_burnin.fleet.attach.workloads import CONFIG, STAMP

from .merge import ABSENT, Choice, Raw, merge

# Texts that no manifest has otherwise.
IMAGE, LEVEL, ROOT, CLUSTER = "xMUSTERxIMAGEx", "xMUSTERxLEVELx", "xMUSTERxROOTx", "xMUSTERxCLUSTERx"
LABEL, VALUE, NAME, NODES = "xMUSTERxLABELx", "xMUSTERxVALUEx", "xMUSTERxNAMEx", "xMUSTERxNODESx"
AUTHORITY = {"ca.crt": "xMUSTERxCERTIFICATEx", "ca.key": "xMUSTERxKEYx"}
AUTHORITY_MADE = "muster.dev/authority-made"
_OBJECT, _OLD = "object", "(oldObject != null ? oldObject : object)"
ENFORCE, POLICY, MONITORING, BY_SSH = "$enforce", "$policy", "$monitoring", "$bySSH"


class _Marked(GpuNodes):
    """GPU Nodes of a label and names that nobody knows yet."""

    def expression(self, node: str = _OBJECT) -> str:
        return f"{NODES}{'1' if node == _OLD else '0'}"


def _expression(node: str) -> str:
    return '{{ include "muster.gpuNodes" (dict "of" .Values.gpuNodes "node" "' + node + '") }}'


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# In this order: a mark in quotes, as JSON has it, before the mark alone.
MARKS: Mapping[str, str] = {
    f'["{NAME}"]': "{{ .Values.gpuNodes.names | toRawJson }}",
    f'"{LABEL}"': "{{ .Values.gpuNodes.label | toRawJson }}",
    f'"{VALUE}"': "{{ .Values.gpuNodes.value | toRawJson }}",
    f'"{CLUSTER}"': "{{ .Values.cluster | toRawJson }}",
    LABEL: "{{ .Values.gpuNodes.label }}",
    VALUE: "{{ .Values.gpuNodes.value }}",
    NAME: "{{ . }}",
    f"{NODES}0": _expression(_OBJECT),
    f"{NODES}1": _expression(_OLD),
    IMAGE: "{{ .Values.image }}",
    LEVEL: "{{ .Values.level }}",
    ROOT: "{{ .Values.driverRoot }}",
    _encoded(AUTHORITY["ca.crt"]): '{{ get (include "muster.authority" . | fromJson) "certificate" | b64enc }}',
    _encoded(AUTHORITY["ca.key"]): '{{ get (include "muster.authority" . | fromJson) "key" | b64enc }}',
}
# An item of a list that has a mark is there for each name, or where there is a label.
REPEATED: Mapping[str, str] = {NAME: "range .Values.gpuNodes.names", LABEL: "if .Values.gpuNodes.label"}


@dataclass(frozen=True)
class Chart:
    """Trees by the file names of `--render`, and what templates of more than one file include, by their names."""

    files: Mapping[str, list[Any]]
    shared: Mapping[str, Any]


def chart() -> Chart:
    """All objects but the namespace, which Helm makes, and the definitions, which it takes from crds/."""
    merged = _merged(ENFORCE, POLICY, BY_SSH)
    files = {name: list(objects.values()) for name, objects in merged.items() if name not in _ELSEWHERE}
    config, gate, attached = (_named(merged["30-config.yaml"], name) for name in (CONFIG, GATE_CONFIG, ATTACHED_CONFIG))
    files[_MONITORING] = [Choice(MONITORING, one, ABSENT) for one in files[_MONITORING]]
    shared = {"muster.config": config["data"], "muster.attached": attached["data"][ATTACHED_KEY]}
    config["data"] = Raw('{{ include "muster.config" . }}')
    attached["data"] = {ATTACHED_KEY: Raw('{{ include "muster.attached" . }}')}
    gate["data"] = {GATE_KEY: Raw('{{ include "muster.lookedAt" . }}')}
    [secret] = [one for one in _objects(files["30-config.yaml"]) if one["kind"] == "Secret"]
    # Templates cannot read when a certificate ends: when Helm made it stands beside it.
    made = {AUTHORITY_MADE: Raw('{{ get (include "muster.authority" . | fromJson) "made" }}')}
    secret["metadata"]["annotations"] = Choice('(get (include "muster.authority" . | fromJson) "made")', made, ABSENT)
    for one in _objects(files["60-workloads.yaml"]):
        _stamp(one)
    return Chart(files, shared)


_ELSEWHERE, _MONITORING = ("00-namespace.yaml", "10-definitions.yaml"), "70-monitoring.yaml"


def written(*, enforcing: bool, taints_by: str, by_ssh: bool = False) -> Parts:
    """What attach writes with marks for all else."""
    nodes = _Marked(LABEL, VALUE, (NAME,))
    settings = Settings(IMAGE, nodes, Mode.OBSERVING, level=LEVEL, driver_root=ROOT, cluster=CLUSTER)
    settings = replace(settings, taints_by=taints_by, monitoring=True, ssh_host_keys=by_ssh)
    if enforcing:
        settings = replace(settings, mode=Mode.ENFORCING)
    return parts(settings, AUTHORITY if taints_by == WEBHOOK_TAINTS else {})


def _merged(*conditions: str) -> dict[str, dict[Any, Any]]:
    """By file, then by kind and name."""
    found: dict[tuple[bool, ...], dict[str, dict[Any, Any]]] = {}
    for of in itertools.product((True, False), repeat=len(conditions)):
        enforcing, policy, by_ssh = of
        made = written(enforcing=enforcing, taints_by=POLICY_TAINTS if policy else WEBHOOK_TAINTS, by_ssh=by_ssh)
        found[of] = {name: _by_name(objects) for name, objects in made.files().items()}
    for condition in reversed(conditions):
        keys = {of[:-1] for of in found}
        found = {key: _joined(condition, found[*key, True], found[*key, False]) for key in keys}
    return dict(sorted(found[()].items()))


def _joined(condition: str, yes: Mapping[str, Any], no: Mapping[str, Any]) -> dict[str, dict[Any, Any]]:
    return {name: dict(merge(condition, yes.get(name, {}), no.get(name, {}))) for name in {**yes, **no}}


def _by_name(objects: list[dict[str, Any]]) -> dict[Any, Any]:
    return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in objects}


def _named(objects: Mapping[Any, Any], name: str) -> Any:
    [found] = [one for (kind, _, named), one in objects.items() if named == name and kind == "ConfigMap"]
    return found


def _objects(trees: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for tree in trees:
        if isinstance(tree, Choice):
            yield from _objects((tree.yes, tree.no))
        elif tree is not ABSENT:
            yield tree


def _stamp(one: dict[str, Any]) -> None:
    """The stamp is of what Helm has put in."""
    template = one.get("spec", {}).get("template")
    if template is not None:
        name = "muster.webhookStamp" if one["metadata"]["name"] == WEBHOOK else "muster.stamp"
        template["metadata"]["annotations"] = {STAMP: Raw('{{ include "' + name + '" . }}')}
