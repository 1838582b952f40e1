"""The report's schema of what checks cover follows from their classes."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from gpu_burnin.checks import CHECKS
from gpu_burnin.report import model
from gpu_burnin.system.codec import to_json
from tests.support.coverages import coverage
from tools.report_schema import coverage_schemas

TYPED = [*CHECKS]


def test_the_shipped_schema_is_that_of_the_classes() -> None:
    shipped = Path(model.__file__).with_name("schema") / "coverage-v1.json"
    assert shipped.read_text() == coverage_schemas(), "run `make docs`"
    assert list(json.loads(shipped.read_text())) == TYPED


@pytest.mark.slow
@pytest.mark.parametrize("check", TYPED)
def test_what_a_class_writes_fits_its_schema(check: str) -> None:
    schema = json.loads(coverage_schemas())[check]
    jsonschema.Draft202012Validator.check_schema(schema)
    plain = to_json(coverage(check))
    jsonschema.validate(plain, schema)
    for name in plain:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({key: value for key, value in plain.items() if key != name}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**plain, "novelty": 1}, schema)
