"""Filling a directory of the cache: what can be downloaded is, where the sites answer; all else is built."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.mirror.cache import cache_dir, locked
from gpu_burnin.fleet.mirror.download import reachable
from gpu_burnin.fleet.mirror.golang import Build, Sources, build_key, go_build, install_go, ready_go, together
from gpu_burnin.fleet.mirror.kept import (
    FILLING,
    PART,
    clean,
    damaged,
    keep,
    point_current,
    remove_old,
    take_over,
    write_lists,
)
from gpu_burnin.fleet.mirror.progress import Progress

GO = "install Go"


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


class Made(Protocol):
    """Files that are made of one program, such as its container image, or of none that is built."""

    @property
    def stage(self) -> str:
        """What the progress calls it."""

    @property
    def build(self) -> Build | None:
        """The program."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The files that stay."""

    def make(self, part: Path) -> None:
        """Make them in `part`."""

    def key(self) -> str:
        """A hash of all that goes into them."""


@dataclass(frozen=True)
class Contents:
    """What a directory of the cache holds.

    `place` is where it is in the cache, `version` what its name begins with. `downloads` are the files that need not be
    built where `site` answers. `first` comes before all builds, `made` after them: where the first needs nothing but
    Go's own sources, those of the next are fetched meanwhile.
    """

    place: str
    version: str
    builds: tuple[Build, ...]
    downloads: tuple[Step, ...]
    site: str
    made: tuple[Made, ...] = ()
    first: tuple[Made, ...] = ()

    def keys(self) -> dict[str, str]:
        """Of each file a hash of all that goes into it, however it comes: built, or downloaded of the same version."""
        built = {build.name: build_key(build) for build in self.builds}
        return built | {name: one.key() for one in (*self.first, *self.made) for name in one.outputs}

    def steps(self, done: Collection[str] = frozenset()) -> list[Step]:
        """All that comes from source, but for the files that are `done`."""
        first, made = (
            [Step(one.stage, one.outputs, one.make, (one.build,) if one.build else ()) for one in some]
            for some in (self.first, self.made)
        )
        steps = [*first, *(_programs(builds, done) for builds in together(self.builds)), *made]
        return [step for step in steps if not set(step.outputs) <= {*done}]


def ensure(contents: Contents, progress: Progress) -> Path:
    """Return the directory with all files and their SHA256SUMS.

    A file whose sum does not fit is made again. When something has changed of what one is made, an older directory
    gives the others. A run that was cut goes on with the files that are missing. Raises GpuBurninError when neither a
    download nor a build is possible.
    """
    lock = cache_dir() / f"{contents.place}.lock"
    with locked(lock, lambda: progress.say(f"waiting for another run that fills {lock.with_suffix('')}")):
        return _ensure(contents, progress)


def _ensure(contents: Contents, progress: Progress) -> Path:
    keys = contents.keys()
    final = cache_dir() / contents.place / _directory(contents.version, keys)
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
            _fill(contents, filling, Path(part), progress, goes_on=goes_on)
        write_lists(filling, keys)
        filling.rename(final)
        remove_old(final)
    point_current(final)
    return final


def _directory(version: str, keys: Mapping[str, str]) -> str:
    return f"{version}-{hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:12]}"


def _fill(contents: Contents, filling: Path, part: Path, progress: Progress, *, goes_on: bool) -> None:
    """Make each file that is missing in `part`, and move it to `filling` when it is whole.

    With `goes_on` an earlier run was cut in the first of them; what Go has compiled of it is in Go's own cache.
    """
    made = {path.name for path in filling.iterdir()}
    steps = contents.steps(made)
    if downloads := [step for step in contents.downloads if not made.issuperset(step.outputs)]:
        if reachable(contents.site):
            downloaded = {name for step in contents.downloads for name in step.outputs}
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
                    raise GpuBurninError(f"{step.name}: it did not bring {name}: choose another version")
                keep(part / name, filling / name)


def _programs(builds: Sequence[Build], made: Collection[str]) -> Step:
    """Programs that go together, but for those that are made."""
    name = builds[0].name if len(builds) == 1 else builds[0].module
    left = tuple(build for build in builds if build.name not in made)
    share = len(left) / len(builds)
    return Step(f"build {name}", tuple(build.name for build in left), partial(go_build, left), left, share)
