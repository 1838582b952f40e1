"""Filling the cache is killed in the middle: the next run makes what is missing, and nothing twice.

The steps are the real ones; Go, the root file system's builder and the download sites are stand-ins.
"""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_burnin.fleet.mirror import kept, programs
from tests.lab import binaries, image
from tests.support.clocks import PATIENCE_S
from tests.support.lab_stand_ins import Machine, called
from tests.support.server_helpers import QuietHandler, listening

LABTOOL, DEVICEPLUGIN = (called(one.build) for one in binaries.IMAGES)
BUILT = {build.name: called(build) for build in binaries.BUILDS}
# In the order in which they are made.
ALL = [LABTOOL, *BUILT.values(), DEVICEPLUGIN]
KUBELET = BUILT["kubelet"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """One whose cache has everything; a test that takes from it has it made again."""
    machine = Machine(tmp_path_factory.mktemp("filled"))
    machine.run(BUILD)
    return machine


def _lose(machine: Machine, *names: str) -> Path:
    """Take files from the cache; gives their directory."""
    for name in names:
        (machine.cache / "bin/current" / name).unlink()
    machine.forget()
    return machine.cache / "bin/current"


BUILD = """
from gpu_burnin.fleet.mirror import fill
from tests.lab import binaries
fill.reachable = lambda url: False
binaries.ensure_binaries()
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_finished_binaries_are_kept_and_what_was_cut_is_made_again(machine: Machine, how: signal.Signals) -> None:
    machine.block(KUBELET)
    machine.run_and_cut(BUILD, lambda: KUBELET in machine.calls(), how, ends=KUBELET)
    assert machine.made() == ALL[: ALL.index(KUBELET) + 1]
    assert not (machine.cache / "bin/current").exists(), "half of it is nothing to use"

    machine.block()
    machine.forget()
    shown = machine.run(BUILD)
    assert machine.made() == ALL[1:]
    assert f"build kubernetes (1 of {len(binaries.CONTENTS.steps()) - 1})" in shown, "all but the labtool"
    assert " left  build kubernetes" in shown
    final = machine.cache / "bin/current"
    assert kept.damaged(final) == []
    assert {name: (final / name).read_text() for name in BUILT} == {name: f"whole {BUILT[name]}" for name in BUILT}
    left = {path.name for path in (machine.cache / "bin").iterdir()}
    assert left == {"current", final.readlink().name}, "no half-made directory stays"

    machine.forget()
    assert machine.run(BUILD) == ""
    assert machine.calls() == []


def test_a_damaged_program_is_built_alone(filled: Machine) -> None:
    final = _lose(filled, "etcd")
    (final / "kubelet").write_text("damaged")
    shown = filled.run(BUILD)
    assert filled.made() == [KUBELET, BUILT["etcd"]]
    assert "build kubernetes (1 of 2)" in shown and "build etcd (2 of 2)" in shown
    assert kept.damaged(final) == []


def test_what_another_version_left_half_made_is_not_used(machine: Machine) -> None:
    other = machine.cache / "bin/1.0.0-other.filling"
    other.mkdir(parents=True)
    for name in BUILT:
        (other / name).write_text("of another version")
    machine.run(BUILD)
    assert machine.made() == ALL
    assert not other.exists()


def test_sources_of_the_next_module_are_fetched_while_this_one_is_built(machine: Machine) -> None:
    machine.block(LABTOOL, "fetch kubernetes")
    run = machine.start(BUILD)
    machine.reach(run, lambda: {LABTOOL, "fetch kubernetes"} <= {*machine.calls()})
    machine.block("fetch kubernetes")
    machine.reach(run, lambda: bool(list(machine.cache.glob("bin/*/labtool.tar"))))
    machine.block()
    machine.finish(run)
    calls = machine.calls()
    modules = list(dict.fromkeys(call.removeprefix("fetch ") for call in calls if call.startswith("fetch ")))
    assert modules == ["kubernetes", "etcd", "etcd37", "coredns", "containerd", "nvidia", "kueue", "deviceplugin"]
    begun = {module: next(n for n, call in enumerate(calls) if call.startswith(f"{module}/")) for module in modules}
    assert all(calls.index(f"fetched {module}") < begun[module] for module in modules), "each build waits for its own"


def test_a_fetch_that_fails_leaves_the_word_to_the_build(filled: Machine) -> None:
    filled.spoil("fetch containerd")
    final = _lose(filled, "kubelet", "ctr")
    filled.run(BUILD)
    assert "fetch containerd" in filled.calls() and "fetched containerd" not in filled.calls()
    assert kept.damaged(final) == []

    filled.spoil("fetch containerd", BUILT["ctr"])
    _lose(filled, "kubelet", "ctr")
    out, err = filled.start(BUILD).communicate()
    assert out == "" and f"{BUILT['ctr']} is broken" in err.splitlines()[-1]
    filled.spoil()
    filled.run(BUILD)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_fetch_ends_with_a_run_that_is_cut(machine: Machine, how: signal.Signals) -> None:
    machine.block(LABTOOL, "fetch kubernetes")
    both = {LABTOOL, "fetch kubernetes"}
    machine.run_and_cut(BUILD, lambda: both <= {*machine.calls()}, how, ends="fetch kubernetes")


def test_a_fetch_ends_with_a_build_that_fails(machine: Machine) -> None:
    machine.block(LABTOOL, "fetch kubernetes")
    machine.spoil(LABTOOL)
    run = machine.start(BUILD)
    machine.reach(run, lambda: "fetch kubernetes" in machine.calls())
    machine.block("fetch kubernetes")
    assert f"{LABTOOL} is broken" in run.communicate()[1]
    assert "ended fetch kubernetes" in machine.calls()


IMAGE = """
from tests.lab import image
image.ensure_image()
print("done")
"""


def test_a_root_file_system_that_was_cut_is_made_again_and_a_finished_one_kept(machine: Machine) -> None:
    machine.block("image")
    machine.run_and_cut(IMAGE, lambda: machine.calls() == ["image"], signal.SIGKILL, ends="image")
    machine.block()
    assert image.STAGE in machine.run(IMAGE)
    assert machine.made() == ["image", "image"]
    assert machine.run(IMAGE) == ""
    assert machine.made() == ["image", "image"]
    (root,) = (machine.cache / "image").iterdir()
    assert (root / "rootfs/etc/whole").exists()


@dataclass
class Site:
    """The download sites on loopback: each file is its own name; `block` is served only half."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    block: str = ""
    half: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[-1]
            body = name.encode()
            if name.endswith(".sha256"):
                body = hashlib.sha256(name.removesuffix(".sha256").encode()).hexdigest().encode()
            else:
                found.asked.append(name)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if name == found.block:
                self.wfile.write(body[:3])
                found.half.set()
                found.go_on.wait(PATIENCE_S)
                return
            self.wfile.write(body)

    with listening(Handler) as found.url:
        yield found
        found.go_on.set()


def test_finished_downloads_are_kept(machine: Machine, site: Site) -> None:
    download = f"""
from dataclasses import replace
from gpu_burnin.fleet.mirror import programs
from tests.lab import binaries
programs.KUBERNETES_SITE = {site.url!r}
binaries.CONTENTS = replace(
    binaries.CONTENTS,
    site={site.url!r} + "/stable.txt",
    downloads=programs.DOWNLOADS[:len(programs.KUBERNETES)],
    builds=(),
)
binaries.ensure_binaries()
print("done")
"""
    site.block = "kubelet"
    machine.run_and_cut(download, site.half.is_set, signal.SIGKILL)
    names = list(programs.KUBERNETES)
    assert site.asked == ["stable.txt", *names[: names.index("kubelet") + 1]]
    site.asked.clear()
    site.block = ""
    site.go_on.set()
    shown = machine.run(download)
    assert site.asked == ["stable.txt", *names[names.index("kubelet") :]]
    assert "download kubelet (1 of 7)" in shown
    assert (machine.cache / "bin/current/kubelet").read_text() == "kubelet"
