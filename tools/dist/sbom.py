"""What a release is made of, as CycloneDX 1.6: each wheel of each archive, each Debian package of the image."""

from __future__ import annotations

import hashlib
import tarfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import parse_wheel_filename

from .debian import DebPackage
from .source import Source
from .sums import sha256

Component = dict[str, Any]


@dataclass(frozen=True)
class Artefact:
    """A file of the release, and what was put into it."""

    path: Path
    wheelhouses: tuple[Path, ...] = ()
    debs: tuple[DebPackage, ...] = ()


def bill(source: Source, directory: Path, artefacts: Sequence[Artefact]) -> dict[str, Any]:
    """The bill of materials. Its number and time follow from the commit."""
    muster = f"pkg:pypi/gpu-burnin@{source.version}"
    parts: dict[str, Component] = {}
    needs: dict[str, list[str]] = {}
    wheels: dict[Path, list[Component]] = {}
    for artefact in artefacts:
        name = str(artefact.path.relative_to(directory))
        parts[name] = _component("file", name, source.version, name, sha256(artefact.path))
        inside = [_deb(package) for package in artefact.debs]
        for archive in artefact.wheelhouses:
            inside += wheels.setdefault(archive, _wheels(archive))
        parts |= {one["bom-ref"]: one for one in inside}
        needs[name] = sorted({one["bom-ref"] for one in inside})
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"muster:{source.commit}")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(source.epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "name": "muster",
                "version": source.version,
                "bom-ref": muster,
                "purl": muster,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
            "properties": [{"name": "muster:commit", "value": source.commit}],
        },
        "components": [parts[name] for name in sorted(parts)],
        "dependencies": [
            {"ref": muster, "dependsOn": sorted(needs)},
            *({"ref": name, "dependsOn": needs[name]} for name in sorted(needs)),
        ],
    }


def _wheels(archive: Path) -> list[Component]:
    found = []
    with tarfile.open(archive) as tar:
        for member in tar:
            if not member.name.endswith(".whl"):
                continue
            name, version = parse_wheel_filename(member.name)[:2]
            content = tar.extractfile(member)
            assert content is not None
            digest = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
            # Two wheels of a package (for two Pythons) are two components: by the file's name.
            purl = f"pkg:pypi/{name}@{version}?file_name={quote(member.name, safe='')}"
            ours = {"licenses": [{"license": {"id": "Apache-2.0"}}]} if name == "gpu-burnin" else {}
            found.append(_component("library", name, str(version), f"{purl}#{digest[:16]}", digest, purl) | ours)
    return found


def _deb(package: DebPackage) -> Component:
    version = quote(package.version, safe="")
    purl = f"pkg:deb/debian/{package.name}@{version}?arch={package.architecture}"
    return _component("library", package.name, package.version, purl, package.sha256, purl)


def _component(kind: str, name: str, version: str, ref: str, digest: str, purl: str = "") -> Component:
    hashes: Sequence[Mapping[str, str]] = [{"alg": "SHA-256", "content": digest}]
    found: Component = {"type": kind, "bom-ref": ref, "name": name, "version": version, "hashes": hashes}
    return found | ({"purl": purl} if purl else {})
