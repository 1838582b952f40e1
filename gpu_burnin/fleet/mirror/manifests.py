"""The cluster's side of a program that comes as a Go module: its definitions, rights and webhooks, as one JSON file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.mirror.commands import run
from gpu_burnin.fleet.mirror.golang import Build, build_key, ready_go, sha256
from gpu_burnin.system.yaml_text import load_documents

_DEFINITION = "CustomResourceDefinition"
# Rights of the program itself; its roles for people are left out.
_FILES = ("crd/bases/*.yaml", "rbac/role.yaml", "webhook/manifests.yaml")


@dataclass(frozen=True)
class Beside:
    """A definition of another Go module, which the program works with where it is: the file `path` of `source`."""

    source: str
    path: str
    version: str


@dataclass(frozen=True)
class Manifests:
    """What the API server has to know of a program: made of the files of the Go module `source`, below `components`.

    `version` is the one that is kept of each definition: without a second one nothing has to be converted.
    """

    build: Build
    source: str
    version: str
    components: str = "config/components"
    beside: tuple[Beside, ...] = ()

    @property
    def stage(self) -> str:
        """What the progress calls it."""
        return f"collect the manifests of {self.build.name}"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The one file: a JSON list of objects."""
        return (f"{self.build.name}-manifests.json",)

    def make(self, part: Path) -> None:
        """Write the file in `part`. Raises CommandError, and GpuBurninError for a definition without the version."""
        found = [*self._objects(_fetched(self.build, self.source) / self.components), *self._beside()]
        objects = sorted(found, key=_order)
        text = json.dumps(objects, sort_keys=True, separators=(",", ":"))
        (part / self.outputs[0]).write_text(f"{text}\n", encoding="utf-8")

    def key(self) -> str:
        """A hash of all that goes into it: the module's version, and the code that reads it."""
        made = (build_key(self.build), self.source, self.version, self.components, self.beside, sha256(Path(__file__)))
        return hashlib.sha256(repr(made).encode()).hexdigest()

    def _beside(self) -> Iterator[dict[str, Any]]:
        for one in self.beside:
            path = _fetched(self.build, one.source) / one.path
            if not path.is_file():
                raise GpuBurninError(f"{one.source}: its module has no {one.path}; choose another version")
            for document in load_documents(path.read_text(encoding="utf-8"), path):
                yield reduced(document, one.version)

    def _objects(self, components: Path) -> Iterator[dict[str, Any]]:
        for pattern in _FILES:
            paths = sorted(components.glob(pattern))
            if not paths:
                raise GpuBurninError(
                    f"{self.source}: its module has no {pattern} in {self.components}; choose another version"
                )
            for document in (one for path in paths for one in load_documents(path.read_text(encoding="utf-8"), path)):
                yield reduced(document, self.version) if document["kind"] == _DEFINITION else document


def reduced(definition: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A definition with this version alone, stored and served. Raises GpuBurninError when it has no such one."""
    spec, name = definition["spec"], definition["metadata"]["name"]
    kept = [one for one in spec["versions"] if one["name"] == version]
    if not kept or not (kept[0]["served"] and kept[0]["storage"]):
        raise GpuBurninError(f"{name}: its module does not store {version}; choose the version that it stores")
    others = {key: value for key, value in spec.items() if key not in ("conversion", "versions")}
    return {
        "apiVersion": definition["apiVersion"],
        "kind": _DEFINITION,
        "metadata": {"name": name},
        "spec": {**others, "versions": kept},
    }


def _order(item: Mapping[str, Any]) -> tuple[bool, str, str]:
    return item["kind"] != _DEFINITION, item["kind"], item["metadata"]["name"]


def _fetched(build: Build, source: str) -> Path:
    """The folder of a module's files, which go.sum has proven."""
    command = ["env", "GOFLAGS=-mod=readonly", "GOWORK=off", ready_go(), "mod", "download", "-json", source]
    return Path(json.loads(run(command, cwd=build.modules / build.module))["Dir"])
