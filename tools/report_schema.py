"""The schema of what each check covers, out of the dataclasses in gpu_burnin/checks/NAME/result.py."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from gpu_burnin.checks import CHECKS, coverage_class
from gpu_burnin.system.codec import json_fields

_SCALARS: Mapping[type, Any] = {
    bool: "boolean", int: "integer", str: "string", NoneType: "null",
    float: ["number", "null"],  # null: not finite
}  # fmt: skip


def coverage_schemas() -> str:
    """The definitions of the report's schema, by check: one line for each field of a class."""
    classes = {check: coverage_class(check) for check in CHECKS}
    return "{\n" + ",\n".join(f'"{check}": {_lines(schema_of(kind))}' for check, kind in classes.items()) + "\n}\n"


def _lines(schema: Mapping[str, Any]) -> str:
    fields = ",\n".join(f'    "{name}": {json.dumps(form)}' for name, form in schema["properties"].items())
    rest = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in schema.items() if key != "properties")
    return f'{{\n{rest},\n  "properties": {{\n{fields}\n  }}\n}}'


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a type hint that the codec reads."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return {}
    if origin in (Union, UnionType):
        return _any_of([schema_of(arg) for arg in args])
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return _array(args)
    if origin is not None and issubclass(origin, Mapping):
        values = schema_of(args[1])
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if is_dataclass(hint):
        return _object(hint)
    return {"enum": [member.value for member in hint]} if issubclass(hint, Enum) else {"type": _SCALARS[hint]}


def _any_of(options: list[dict[str, Any]]) -> dict[str, Any]:
    """One list of types where that says it all."""
    if all(option.keys() == {"type"} for option in options):
        types = [kind for o in options for kind in (o["type"] if isinstance(o["type"], list) else [o["type"]])]
        return {"type": list(dict.fromkeys(types))}
    return {"anyOf": options}


def _array(items: tuple[Any, ...]) -> dict[str, Any]:
    if items[1:] == (...,):
        return {"type": "array", "items": schema_of(items[0])}
    count = {"minItems": len(items), "maxItems": len(items)}
    return {"type": "array", "prefixItems": [schema_of(item) for item in items], **count}


def _object(kind: Any) -> dict[str, Any]:
    fields = json_fields(kind)
    return {
        "description": " ".join((inspect.getdoc(kind) or "").split()),
        "type": "object",
        "additionalProperties": False,
        "required": [field.json_name for field in fields if not field.omit_default],
        "properties": {field.json_name: schema_of(field.hint) for field in fields},
    }
