"""Container image archives (docker format): of one program with the shared libraries that it needs, or of packages."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_burnin.fleet.mirror.commands import WITH_US, run

_TO_READ = re.compile(r"\./(usr/share/(bug|doc|lintian|locale|man|perl5|pixmaps)|var/(cache|lib))/")


def write_image(
    archive: Path, name: str, program: Path, *, command: Sequence[str] = (), libraries: Sequence[Path] = ()
) -> None:
    """Write an image of that name to `archive`: the program in its root, libraries where they were."""
    layer = _layer([(program.name, program), *((str(path).lstrip("/"), path) for path in libraries)])
    _write(archive, name, layer, {"Entrypoint": [f"/{program.name}"], **({"Cmd": list(command)} if command else {})})


def write_package_image(archive: Path, name: str, packages: Sequence[str], suite: str, command: Sequence[str]) -> None:
    """Write an image of that name to `archive`: the files of packages of the distribution, but for what people read."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as made:
        tree = Path(made) / "tree.tar"
        run([
            *WITH_US, "mmdebstrap", "--variant=extract", "--aptopt=Acquire::Languages \"none\"",
            f"--include={','.join(packages)}", "--format=tar", suite, tree,
        ])  # fmt: skip
        layer = io.BytesIO()
        with tarfile.open(tree) as whole, tarfile.open(fileobj=layer, mode="w") as kept:
            for entry in whole:
                # Devices are the container runtime's to make.
                if (entry.isreg() or entry.isdir() or entry.issym()) and not _TO_READ.match(entry.name):
                    kept.addfile(entry, whole.extractfile(entry) if entry.isreg() else None)
    _write(archive, name, layer.getvalue(), {"Cmd": list(command)})


def _write(archive: Path, name: str, layer: bytes, started: Mapping[str, Sequence[str]]) -> None:
    diff_id = hashlib.sha256(layer).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": started,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]}, "history": [{}],
    }).encode()  # fmt: skip
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as tar:
        for entry, data in (("config.json", config), ("layer.tar", layer), ("manifest.json", manifest)):
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    archive.chmod(0o644)


def libraries(program: Path) -> list[Path]:
    """The shared libraries that the dynamic linker finds for a program, the linker itself included."""
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", run(["ldd", program]))]


def _layer(files: Sequence[tuple[str, Path]]) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        # Any real image has one, and the container toolkit's hook writes its ld.so.conf.d there.
        folder = tarfile.TarInfo("etc")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        for name, path in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o755
            with path.open("rb") as file:
                tar.addfile(entry, file)
    return layer.getvalue()
