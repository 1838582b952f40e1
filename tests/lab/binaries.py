"""The binaries of the lab in the cache: downloaded where the upstream sites answer, else built from Go modules.

Both ways end in one directory with the same names and a SHA256SUMS, which is what a production mirror holds too.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import container_image
from .container_image import libraries, write_image
from .golang import Build, Sources, build_key, go_build, install_go, ready_go, sha256, together
from .kept import FILLING, PART, clean, damaged, keep, point_current, remove_old, take_over, write_lists
from .machine import locked
from .paths import cache_dir
from .progress import Progress, preparing
from .shell import LabError

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.16"
# What a member is upgraded to; only the server differs for the tests.
NEXT_ETCD_VERSION = "3.7.3"
NEXT_ETCD = f"etcd-{NEXT_ETCD_VERSION}"
COREDNS_VERSION = "1.15.0"
CONTAINERD_VERSION = "2.4.2"
TOOLKIT_VERSION = "1.20.1"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
ETCD = ("etcd", "etcdctl", "etcdutl")
KUBERNETES_SITE = "https://dl.k8s.io/release"
GITHUB = "https://github.com"
REACHABLE = f"{KUBERNETES_SITE}/stable.txt"
REACH_TIMEOUT_S = 5


def kubernetes_build(name: str, module: str, version: str) -> Build:
    """One program of Kubernetes of this release."""
    major, minor, _ = version.split(".")
    said = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    ldflags = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in said.items())
    return Build(name, module, f"k8s.io/kubernetes/cmd/{name}", ldflags)


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
    *(kubernetes_build(name, "kubernetes", KUBERNETES_VERSION) for name in KUBERNETES),
    Build("etcd", "etcd", "go.etcd.io/etcd/server/v3", version=ETCD_VERSION),
    Build("etcdctl", "etcd", "go.etcd.io/etcd/etcdctl/v3", version=ETCD_VERSION),
    Build("etcdutl", "etcd", "go.etcd.io/etcd/etcdutl/v3", version=ETCD_VERSION),
    Build(NEXT_ETCD, "etcd37", "go.etcd.io/etcd/server/v3", version=NEXT_ETCD_VERSION),
    Build("coredns", "coredns", ".", version=COREDNS_VERSION),
    *CONTAINERD_BUILDS,
    *TOOLKIT_BUILDS,
)


@dataclass(frozen=True)
class Image:
    """A container image of one program of the lab: the stage that makes it, the image's name, the files that stay."""

    stage: str
    build: Build
    name: str
    outputs: tuple[str, ...]
    command: tuple[str, ...] = ()

    def make(self, part: Path) -> None:
        """Build the program in `part`, and the archive beside it."""
        go_build([self.build], part)
        program = part / self.build.name
        needed = libraries(program) if self.build.nvml else ()
        write_image(part / f"{program.name}.tar", self.name, program, command=self.command, libraries=needed)

    def key(self) -> str:
        """A hash of all that goes into it: the program, and the code that packs it."""
        packed = (build_key(self.build), self.name, self.command, sha256(Path(container_image.__file__)))
        return hashlib.sha256(repr(packed).encode()).hexdigest()


IMAGES = (
    Image(
        "build the container image",
        Build("labtool", "labtool", "."),
        "lab.muster.dev/tool:1",
        ("labtool", "labtool.tar"),
        command=("pause",),
    ),
    Image(
        "build the device plugin",
        Build("deviceplugin", "deviceplugin", ".", nvml=True),
        "lab.muster.dev/device-plugin:1",
        ("deviceplugin.tar",),
    ),
)


def ensure_binaries(progress: Progress | None = None) -> Path:
    """Return the directory with all binaries, their SHA256SUMS and the lab's container image.

    A file whose sum does not fit is made again. When something has changed of what one is made, an older directory
    gives the others. Cold on 2 cores a build takes 9 minutes, on a busy machine more; one that was cut goes on with the
    binaries that are missing. Raises LabError when neither a download nor a build is possible.
    """
    with (
        preparing(progress) as shown,
        locked(cache_dir() / "bin.lock", lambda: shown.say("waiting for another lab that makes the binaries")),
    ):
        return _ensure_binaries(shown)


def _ensure_binaries(progress: Progress) -> Path:
    keys = _keys()
    final = cache_dir() / "bin" / _directory(keys)
    filling = final.with_name(f"{final.name}{FILLING}")
    if final.exists() and (wrong := damaged(final)):
        progress.say(f"{final}: {', '.join(wrong)} do not match their checksums: they are made again")
        for name in wrong:
            (final / name).unlink(missing_ok=True)
        shutil.rmtree(filling, ignore_errors=True)
        final.rename(filling)
    if not final.exists():
        goes_on = filling.exists()
        clean(filling)
        with tempfile.TemporaryDirectory(prefix=PART, dir=final.parent) as part:
            if taken := take_over(filling, Path(part), keys):
                progress.say(f"{taken} of {len(keys)} files are those of an older directory")
            _fill(filling, Path(part), progress, goes_on=goes_on)
        write_lists(filling, keys)
        filling.rename(final)
        remove_old(final)
    point_current(final)
    return final


def _keys() -> dict[str, str]:
    """Of each file a hash of all that goes into it, however it comes: built, or downloaded of the same version."""
    built = {build.name: build_key(build) for build in BUILDS}
    return built | {name: image.key() for image in IMAGES for name in image.outputs}


def _directory(keys: Mapping[str, str]) -> str:
    return f"{KUBERNETES_VERSION}-{hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:12]}"


def _fill(filling: Path, part: Path, progress: Progress, *, goes_on: bool) -> None:
    """Make each file that is missing in `part`, and move it to `filling` when it is whole.

    With `goes_on` an earlier run was cut in the first of them; what Go has compiled of it is in Go's own cache.
    """
    made = {path.name for path in filling.iterdir()}
    steps = _builds(made)
    if downloads := [step for step in DOWNLOADS if not made.issuperset(step.outputs)]:
        if _reachable(REACHABLE):
            downloaded = {name for step in DOWNLOADS for name in step.outputs}
            steps = [*downloads, *(step for step in steps if not downloaded.issuperset(step.outputs))]
        else:
            progress.say("the upstream download sites do not answer: building from the published Go modules")
    without_go = any(step.builds for step in steps) and not ready_go()
    progress.plan([GO] if without_go else [])
    for step in steps:
        progress.plan([step.name], share=step.share)
    if without_go:
        progress.stage(GO)
        install_go()
    with Sources() as sources:
        for number, step in enumerate(steps, 1):
            begun = goes_on and number == 1
            progress.stage(step.name, f"{number} of {len(steps)}", whole=step.share == 1 and not begun)
            sources.wait()
            if following := [build for later in steps[number : number + 1] for build in later.builds]:
                sources.fetch(following)
            step.make(part)
            for name in step.outputs:
                if not (part / name).exists():
                    raise LabError(f"{step.name}: it did not bring {name}: choose another version")
                keep(part / name, filling / name)


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
    """Files that are made together: in the directory given, each under its own name.

    `builds`: the programs that Go builds for it, in one call. `share`: so much of the whole step is to be done.
    """

    name: str
    outputs: tuple[str, ...]
    make: Callable[[Path], None]
    builds: tuple[Build, ...] = ()
    share: float = 1.0


GO = "install Go"
DOWNLOADS = (
    *(Step(f"download {name}", (name,), partial(_download, name)) for name in KUBERNETES),
    Step("download containerd", CONTAINERD, _download_containerd),
    Step("download etcd", ETCD, _download_etcd),
    Step("download coredns", ("coredns",), _download_coredns),
)


def _builds(made: Collection[str] = frozenset()) -> list[Step]:
    """All that comes from source, but for the files that are `made`.

    The first needs nothing but Go's own sources: those of the next are fetched meanwhile.
    """
    images = [Step(image.stage, image.outputs, image.make, (image.build,)) for image in IMAGES]
    steps = [*images[:1], *(_programs(builds, made) for builds in together(BUILDS)), *images[1:]]
    return [step for step in steps if not set(step.outputs) <= {*made}]


def _programs(builds: Sequence[Build], made: Collection[str]) -> Step:
    """Programs that go together, but for those that are made."""
    name = builds[0].name if len(builds) == 1 else builds[0].module
    left = tuple(build for build in builds if build.name not in made)
    share = len(left) / len(builds)
    return Step(f"build {name}", tuple(build.name for build in left), partial(go_build, left), left, share)


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
