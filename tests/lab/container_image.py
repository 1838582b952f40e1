"""Container image archives (docker format) of one program and the shared libraries that it needs."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from gpu_burnin.fleet.mirror.commands import run


def write_image(
    archive: Path, name: str, program: Path, *, command: Sequence[str] = (), libraries: Sequence[Path] = ()
) -> None:
    """Write an image of that name to `archive`: the program in its root, libraries where they were."""
    layer = _layer([(program.name, program), *((str(path).lstrip("/"), path) for path in libraries)])
    diff_id = hashlib.sha256(layer).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], **({"Cmd": list(command)} if command else {})},
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
