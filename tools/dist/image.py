"""The OCI image of admitter and node as one archive: a root of Debian packages, and on it the Python packages."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import debian
from .archives import compress, write_tree
from .python import compile_tree, lay_out
from .source import Source
from .sums import sha256

NAME = "localhost/muster"
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Layer:
    """A layer as registries know it: its compressed bytes, and the digest of what is in them."""

    blob: Path
    diff_id: str


def build_image(
    source: Source, debs: Sequence[Path], wheelhouses: Sequence[Path], python: str, tag: str, archive: Path
) -> list[debian.DebPackage]:
    """Write the image `tag` to `archive` and give the Debian packages in it. Raises DistError, OSError."""
    with tempfile.TemporaryDirectory(prefix=".image-", dir=archive.parent) as scratch:
        system, packages = Path(scratch, "system"), Path(scratch, "packages")
        system.mkdir()
        packages.mkdir()
        kept = debian.lay_out(debs, system)
        lay_out(wheelhouses, [python], f"/usr/bin/python{python}", packages)
        layers = []
        for number, tree in enumerate((system, packages)):
            compile_tree(tree, python)
            layers.append(_layer(tree, Path(scratch, f"{number}.tar"), source.epoch_s))
        _write_layout(archive, layers, _config(source, layers, tag), tag, source.epoch_s)
    return kept


def _layer(tree: Path, plain: Path, epoch_s: int) -> Layer:
    with plain.open("wb") as out:
        write_tree(tree, out, epoch_s)
    blob = plain.with_suffix(".tar.gz")
    compress(plain, blob)
    return Layer(blob, f"sha256:{sha256(plain)}")


def _config(source: Source, layers: Sequence[Layer], tag: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(source.epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            # The node's part needs root: the host's SSH key and kernel log. Its manifest says so.
            "User": f"{debian.UID}:{debian.UID}",
            "Env": [
                "PATH=/usr/bin",
                "HOME=/tmp",
                "PYTHONUTF8=1",
                "PYTHONUNBUFFERED=1",
                # Which GPUs is the manifest's to say, or the admitter would be given some.
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            ],
            "Cmd": ["gpu-burnin", "--help"],
            "WorkingDir": "/tmp",
            "Labels": {
                "org.opencontainers.image.title": "Muster",
                "org.opencontainers.image.version": tag,
                "org.opencontainers.image.revision": source.commit,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [
            {"created": created, "created_by": "Debian packages"},
            {"created": created, "created_by": "Python packages"},
        ],
    }


def _write_layout(archive: Path, layers: Sequence[Layer], config: dict[str, Any], tag: str, epoch_s: int) -> None:
    blobs: dict[str, Path | bytes] = {}

    def add(content: Path | bytes, media: str) -> dict[str, Any]:
        data = content if isinstance(content, bytes) else None
        digest = hashlib.sha256(data).hexdigest() if data is not None else sha256(Path(str(content)))
        blobs[digest] = content
        size = len(data) if data is not None else Path(str(content)).stat().st_size
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": size}

    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": add(_json(config), f"{_OCI}.config.v1+json"),
        "layers": [add(layer.blob, f"{_OCI}.layer.v1.tar+gzip") for layer in layers],
    }
    found = add(_json(manifest), f"{_OCI}.manifest.v1+json") | {
        "platform": {"architecture": "amd64", "os": "linux"},
        # The first is what podman and skopeo read, the second what containerd reads.
        "annotations": {
            "org.opencontainers.image.ref.name": f"{NAME}:{tag}",
            "io.containerd.image.name": f"{NAME}:{tag}",
        },
    }
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [found]}
    entries: dict[str, Path | bytes] = {
        "index.json": _json(index),
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
    }
    entries |= {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in sorted(entries.items()):
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = epoch_s, 0o644
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                continue
            info.size = content.stat().st_size
            with content.open("rb") as file:
                tar.addfile(info, file)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
