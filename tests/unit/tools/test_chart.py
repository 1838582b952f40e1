"""The chart's generator: nothing of a manifest is lost on its way into a template, and nothing marked is left in one.

That Helm makes of it what `muster attach --render` writes is tests/integration/test_chart.py's.
Only here: the generator itself, which renders the gate eight times; and once as a release does, in its own process.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from gpu_burnin import __version__
from gpu_burnin.api.attached import WEBHOOK
from gpu_burnin.fleet.attach.settings import POLICY_TAINTS
from tools.dist.chart import files as chart_files
from tools.dist.chart.archive import build_chart
from tools.dist.chart.emit import Template
from tools.dist.chart.merge import ABSENT, Choice, Raw, merge
from tools.dist.chart.symbols import REPEATED, written
from tools.dist.source import Source

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return chart_files.files()


def test_no_mark_is_left_and_no_object_is_lost(files: dict[str, str]) -> None:
    templates = {name: text for name, text in files.items() if name.startswith("templates/")}
    assert not [name for name, text in files.items() if "xMUSTERx" in text]
    text = "".join(templates.values())
    for enforcing in (True, False):
        for by in (WEBHOOK, POLICY_TAINTS):
            made = written(enforcing=enforcing, taints_by=by)
            for one in made.all():
                name = one["metadata"]["name"]
                place = files if one["kind"] == "CustomResourceDefinition" else templates
                assert f"crds/{name}.yaml" in place or f"name: {name}\n" in text or one["kind"] == "Namespace", name
    assert text.count("kind: ValidatingAdmissionPolicy\n") == len(
        [one for one in made.gate if one["kind"] == "ValidatingAdmissionPolicy"]
    )


def test_each_definition_is_the_one_that_attach_writes(files: dict[str, str]) -> None:
    made = written(enforcing=False, taints_by=POLICY_TAINTS).definitions
    found = [yaml.safe_load(text) for name, text in sorted(files.items()) if name.startswith("crds/")]
    assert sorted(made, key=lambda one: str(one["metadata"]["name"])) == found


def test_blocks_of_templates_are_closed(files: dict[str, str]) -> None:
    for name, text in files.items():
        if name.startswith("templates/"):
            opened = re.findall(r"\{\{-? (?:if|range|define|with) ", text)
            assert len(opened) == len(re.findall(r"\{\{-? end -?\}\}", text)), name


def test_values_of_the_chart_are_described_and_those_that_attach_refuses_are_refused(files: dict[str, str]) -> None:
    schema, values = json.loads(files["values.schema.json"]), yaml.safe_load(files["values.yaml"])
    Draft7Validator.check_schema(schema)
    check = Draft7Validator(schema)
    assert set(schema["properties"]) == set(values) | {"global"}
    # The two that have no default are asked for.
    assert {error.path[0] for error in check.iter_errors(values)} == {"image", "gpuNodes"}
    good = {**values, "image": "registry.example.com/muster:1", "gpuNodes": {"label": "a/b", "value": "c"}}
    assert list(check.iter_errors(good)) == []
    changes: tuple[dict[str, Any], ...] = (
        {"image": "a b"},
        {"gpuNodes": {"label": "", "value": "x"}},
        {"gpuNodes": {"label": "a' || 'b", "value": ""}},
        {"gpuNodes": {"names": ["UPPER"]}},
        {"level": "deep"},
        {"driverRoot": "/../x"},
        {"enforce": "yes"},
        {"sshHostKeys": "yes"},
        {"nodeSelector": {}},
    )
    for change in changes:
        assert list(check.iter_errors({**good, **change})), change


def test_the_chart_names_the_release(files: dict[str, str]) -> None:
    about = yaml.safe_load(files["Chart.yaml"])
    assert (about["name"], about["version"], about["appVersion"]) == ("muster", __version__, __version__)


TEMPLATE = Template({"xIMAGEx": "{{ .Values.image }}", "xNAMEx": "{{ . }}"}, {"xNAMEx": "range .Values.names"})


@pytest.mark.parametrize(
    ("yes", "no", "text"),
    [
        ({"a": 1}, {"a": 1}, "---\na: 1\n"),
        ({"a": "x yes"}, {"a": "x no"}, "---\na: |-\n  x {{ if $c }}yes{{ else }}no{{ end }}\n"),
        ({"a": ["b"]}, {"a": ["b", "c"]}, "---\na:\n- b\n{{- if not $c }}\n- c\n{{- end }}\n"),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}]}, "---\na:\n- b: 1\n{{- if $c }}\n- b: 2\n{{- end }}\n"),
        ({"a": ["c"]}, {"a": ["b", "c"]}, "---\n{{- if $c }}\na:\n- c\n{{- else }}\na:\n- b\n- c\n{{- end }}\n"),
        ({"a": []}, {"a": ["b"]}, "---\n{{- if $c }}\na: []\n{{- else }}\na:\n- b\n{{- end }}\n"),
        ({"a": 1, "b": "true"}, {"a": 1}, '---\na: 1\n{{- if $c }}\nb: "true"\n{{- end }}\n'),
        ({"a": {}}, {}, "---\n{{- if $c }}\na: {}\n{{- end }}\n"),
    ],
)
def test_what_differs_is_a_choice(yes: Any, no: Any, text: str) -> None:
    assert TEMPLATE.documents([merge("$c", yes, no)]) == text


def test_an_object_that_is_not_always_there_is_in_a_block() -> None:
    tree = Choice("$a", Choice("$b", ABSENT, {"k": "v"}), ABSENT)
    assert TEMPLATE.documents([tree]) == "{{- if $a }}\n{{- if not $b }}\n---\nk: v\n{{- end }}\n{{- end }}\n"


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"image": "xIMAGEx"}, "image: |-\n  {{ .Values.image }}"),
        ({"of": [{"in": ["xNAMEx"]}]}, "of:\n{{- range .Values.names }}\n- in:\n  - |-\n    {{ . }}\n{{- end }}"),
        ({"text": "two\nlines\n"}, "text: |\n  two\n  lines"),
        ({"words": "{{ $value }}"}, 'words: |-\n  {{ "{{" }} $value }}'),
        ({"a": Raw('{{ include "x" . }}')}, 'a:\n  {{- include "x" . | nindent 2 }}'),
        ({"no": None, "yes": "on", "n": 0}, '"no": null\n"yes": "on"\nn: 0'),
    ],
)
def test_texts_are_those_that_helm_reads(tree: Any, text: str) -> None:
    assert TEMPLATE.body(tree) == text


def test_items_that_are_several_are_in_a_block_of_each() -> None:
    assert set(REPEATED.values()) == {"range .Values.gpuNodes.names", "if .Values.gpuNodes.label"}


def test_an_archive_has_the_chart_and_nothing_of_its_time_and_place(files: dict[str, str], tmp_path: Path) -> None:
    """That two builds are the same bytes is tests/integration/test_dist.py's."""
    archive = build_chart(Source(ROOT, "0" * 40, 1_700_000_000, __version__), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"muster-{__version__}.tgz"]
    with tarfile.open(archive) as tar:
        found = {one.name: (tar.extractfile(one) or io.BytesIO()).read().decode() for one in tar if one.isfile()}
        assert {(one.uid, one.mtime, one.mode) for one in tar if one.isfile()} == {(0, 1_700_000_000, 0o644)}
    assert found == {f"muster/{name}": text for name, text in files.items()}
