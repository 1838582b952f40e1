"""The files of the chart, from the objects of attach mode and the few that are Helm's own. Pure but for reading those."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin import __version__
from gpu_burnin.api import attached
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.fleet.attach import settings

from .archive import NAME
from .emit import Template
from .symbols import BY_SSH, ENFORCE, MARKS, MONITORING, POLICY, REPEATED, Chart, chart, written

_STATIC = Path(__file__).parent / "static"
_GATE, _TAINT = "40-gate.yaml", "50-taint.yaml"
_INCLUDED = {_GATE: "muster.gate", _TAINT: "muster.taint"}
_VARIABLES = f"""\
{{{{- {ENFORCE} := .Values.enforce }}}}
{{{{- {POLICY} := eq (include "muster.taintBy" .) "policy" }}}}
{{{{- {MONITORING} := eq (include "muster.monitoring" .) "yes" }}}}
{{{{- {BY_SSH} := .Values.sshHostKeys -}}}}
"""


def files() -> dict[str, str]:
    """Each file of the chart by its path."""
    made = chart()
    found = {str(path.relative_to(_STATIC)): path.read_text() for path in _STATIC.rglob("*") if path.is_file()}
    found |= _templates(made)
    found["Chart.yaml"] = _yaml(
        {
            "apiVersion": "v2",
            "name": NAME,
            "description": "GPU nodes pass muster before they take work: burn-in, ledger, admitter and gate in a "
            "cluster that is there.",
            "type": "application",
            "version": __version__,
            "appVersion": __version__,
            "annotations": {"artifacthub.io/license": "Apache-2.0"},
        }
    )
    found["values.schema.json"] = json.dumps(schema(), indent=1) + "\n"
    crds = written(enforcing=False, taints_by=settings.POLICY_TAINTS).definitions
    found |= {f"crds/{one['metadata']['name']}.yaml": _yaml(one) for one in crds}
    return dict(sorted(found.items()))


def schema() -> dict[str, Any]:
    """Of the values: what `muster attach` would refuse, Helm refuses in its words."""
    text = {"type": "string"}
    pem = _closed({"certificate": text, "key": text})
    label = {"required": ["label"], "properties": {"label": {"minLength": 1}}}
    names = {"required": ["names"], "properties": {"names": {"minItems": 1}}}
    name = _of(attached.NODE.pattern)
    of = {
        "label": _of(f"({attached.LABEL.pattern})?"),
        "value": _of(attached.VALUE.pattern),
        "names": {"type": "array", "items": name},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "required": ["image", "gpuNodes"],
        **_closed(
            {
                "image": _of(settings.IMAGE.pattern, "the container image of this version: REGISTRY/NAME:TAG"),
                "gpuNodes": {**_closed(of), "anyOf": [label, names]},
                "enforce": {"type": "boolean"},
                "taintBy": {"enum": ["auto", settings.WEBHOOK_TAINTS, settings.POLICY_TAINTS]},
                "level": {"enum": list(LEVEL_NAMES)},
                "driverRoot": {**_of(settings.PATH.pattern), "not": {"pattern": "\\.\\."}},
                "sshHostKeys": {"type": "boolean"},
                "cluster": text,
                "monitoring": {"enum": ["auto", "on", "off"]},
                "webhook": _closed({"authority": pem}),
                "global": {"type": "object"},
            }
        ),
    }


def _of(pattern: str, words: str = "") -> dict[str, Any]:
    return {"type": "string", "pattern": f"^(?:{pattern})$", **({"description": words} if words else {})}


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _templates(made: Chart) -> dict[str, str]:
    template = Template(MARKS, REPEATED)
    defined = [(name, template.body(tree)) for name, tree in made.shared.items()]
    found = {}
    for name, trees in made.files.items():
        text = template.documents(trees)
        if name in _INCLUDED:
            defined.append((_INCLUDED[name], text))
            text = f'{{{{ include "{_INCLUDED[name]}" . }}}}\n'
        else:
            text = f"{_VARIABLES}{text}"
        found[f"templates/{name}"] = text
    blocks = [f'{{{{- define "{name}" -}}}}\n{_VARIABLES}{text.rstrip()}\n{{{{- end }}}}\n' for name, text in defined]
    found["templates/_muster.tpl"] = "\n".join([*blocks, _gpu_nodes()])
    return found


def _gpu_nodes() -> str:
    """Which Nodes have GPUs, in CEL: the parts are those that attach writes, of a label and of names."""
    label = attached.GpuNodes("LABEL", "VALUE").expression("NODE")[1:-1]
    names = attached.GpuNodes(names=("NAME",)).expression("NODE")[1:-1]
    replaced = {"LABEL": ".of.label", "VALUE": ".of.value", "NODE": ".node"}
    for word, place in replaced.items():
        label, names = (text.replace(word, f"{{{{ {place} }}}}") for text in (label, names))
    names = names.replace("['NAME']", """['{{ join "', '" .of.names }}']""")
    return f"""\
{{{{- define "muster.gpuNodes" -}}}}
({{{{ if .of.label }}}}{label}{{{{ if .of.names }}}} || {{{{ end }}}}{{{{ end }}}}{{{{ if .of.names }}}}{names}{{{{ end }}}})
{{{{- end }}}}
"""


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, width=110)
