"""Filling the cache is killed in the middle: the next run makes what is missing, and nothing twice.

The steps are the real ones; Go, the root file system's builder and the download sites are stand-ins.
"""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab import binaries, image, kept
from tests.lab.paths import REPOSITORY
from tests.support.clocks import PATIENCE_S, wait_until

BUILT = [build.name for build in binaries.BUILDS]
# Of the lab's own images, after all others.
IMAGES = ["deviceplugin", "labtool"]
# Writes a half, and stays there as long as the file `block` names what is made.
GO = """#!/bin/sh
trap 'touch "$STAND_IN/ended"; exit 1' TERM
[ "$1" != version ] || { echo go version go1.99.0 linux/amd64; exit; }
while [ "$1" != -o ]; do shift; done
echo "${2##*/}" >>"$STAND_IN/calls"
printf half >"$2"
while grep -qsxF "${2##*/}" "$STAND_IN/block"; do sleep 0.02; done
printf "whole ${2##*/}" >"$2"
"""
MMDEBSTRAP = """#!/bin/sh
trap 'touch "$STAND_IN/ended"; exit 1' TERM
echo image >>"$STAND_IN/calls"
for last; do :; done
mkdir -p "$last/etc"
while grep -qsxF image "$STAND_IN/block"; do sleep 0.02; done
touch "$last/etc/whole"
"""


@dataclass
class Machine:
    """A cache and stand-ins in a folder; `code` of a run is Python in a process of its own."""

    root: Path

    def start(self, code: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ, "MUSTER_CACHE": str(self.root / "cache"), "STAND_IN": str(self.root),
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-c", code], cwd=REPOSITORY, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, code: str) -> str:
        """Run to the end; what it showed."""
        out, err = self.start(code).communicate()
        assert out.strip() == "done", err
        return err

    def run_and_cut(
        self, code: str, in_the_middle: Callable[[], bool], how: signal.Signals, *, child: bool = True
    ) -> None:
        """Cut the run when it has come so far: with all it started as Ctrl-C does, or alone as kill -9 does."""
        process = self.start(code)
        while not in_the_middle():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        (os.killpg if how is signal.SIGINT else os.kill)(process.pid, how)
        process.communicate()
        assert process.returncode != 0
        if child and how is signal.SIGKILL:  # what the killed run had started does not go on without it
            wait_until((self.root / "ended").exists)

    def block(self, *names: str) -> None:
        (self.root / "block").write_text("".join(f"{name}\n" for name in names))

    def calls(self) -> list[str]:
        """What was begun since the last look."""
        path = self.root / "calls"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "bin").mkdir()
    for name, script in {"go": GO, "ldd": "#!/bin/sh\n", "mmdebstrap": MMDEBSTRAP}.items():
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    return Machine(tmp_path)


BUILD = """
from tests.lab import binaries
binaries._reachable = lambda url: False
binaries.ensure_binaries()
print("done")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_finished_binaries_are_kept_and_the_cut_one_is_made_again(machine: Machine, how: signal.Signals) -> None:
    machine.block("kubelet")
    machine.run_and_cut(BUILD, lambda: "kubelet" in machine.calls(), how)
    before = machine.calls()
    assert before == BUILT[: BUILT.index("kubelet") + 1]
    assert not (machine.root / "cache/bin/current").exists(), "half of it is nothing to use"

    machine.block()
    (machine.root / "calls").unlink()
    shown = machine.run(BUILD)
    assert machine.calls() == [*BUILT[BUILT.index("kubelet") :], *IMAGES]
    assert f"build kubelet (1 of {len(BUILT) - BUILT.index('kubelet') + len(IMAGES)})" in shown
    assert " left  build kubelet" in shown
    final = machine.root / "cache/bin/current"
    assert kept.damaged(final) == []
    assert {name: (final / name).read_text() for name in BUILT} == {name: f"whole {name}" for name in BUILT}
    left = {path.name for path in (machine.root / "cache/bin").iterdir()}
    assert left == {"current", final.readlink().name}, "no half-made directory stays"

    (machine.root / "calls").unlink()
    assert machine.run(BUILD) == ""
    assert machine.calls() == []


def test_what_another_version_left_half_made_is_not_used(machine: Machine) -> None:
    other = machine.root / "cache/bin/1.0.0-other.filling"
    other.mkdir(parents=True)
    for name in BUILT:
        (other / name).write_text("of another version")
    machine.run(BUILD)
    assert machine.calls() == [*BUILT, *IMAGES]
    assert not other.exists()


IMAGE = """
from tests.lab import image
image.ensure_image()
print("done")
"""


def test_a_root_file_system_that_was_cut_is_made_again_and_a_finished_one_kept(machine: Machine) -> None:
    machine.block("image")
    machine.run_and_cut(IMAGE, lambda: machine.calls() == ["image"], signal.SIGKILL)
    machine.block()
    assert image.STAGE in machine.run(IMAGE)
    assert machine.calls() == ["image", "image"]
    assert machine.run(IMAGE) == ""
    assert machine.calls() == ["image", "image"]
    (root,) = (machine.root / "cache/image").iterdir()
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

    class Handler(http.server.BaseHTTPRequestHandler):
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

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        found.go_on.set()
        server.shutdown()
        thread.join()


def test_finished_downloads_are_kept(machine: Machine, site: Site) -> None:
    download = f"""
from tests.lab import binaries
binaries.KUBERNETES_SITE = {site.url!r}
binaries.REACHABLE = {site.url!r} + "/stable.txt"
binaries.DOWNLOADS = binaries.DOWNLOADS[:len(binaries.KUBERNETES)]
binaries.BUILDS = ()
binaries.ensure_binaries()
print("done")
"""
    site.block = "kubelet"
    machine.run_and_cut(download, site.half.is_set, signal.SIGKILL, child=False)
    names = list(binaries.KUBERNETES)
    assert site.asked == ["stable.txt", *names[: names.index("kubelet") + 1]]
    site.asked.clear()
    site.block = ""
    site.go_on.set()
    shown = machine.run(download)
    assert site.asked == ["stable.txt", *names[names.index("kubelet") :]]
    assert "download kubelet (1 of 4)" in shown
    assert (machine.root / "cache/bin/current/kubelet").read_text() == "kubelet"
