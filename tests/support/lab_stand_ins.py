"""A machine on which the lab's cache is filled in no time: Go and the root file system's builder are stand-ins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.fleet.mirror.golang import Build, _executable
from gpu_burnin.system.files import write_atomic
from tests.lab.paths import REPOSITORY

from .clocks import wait_until

# Builds MODULE/PROGRAM: writes a half, and stays there as long as the file `block` names what is made. `list` fetches.
_GO = """#!/bin/sh
trap 'echo "ended $doing" >>"$STAND_IN/calls"; exit 1' TERM
begin() {
  doing=$1
  echo "$doing" >>"$STAND_IN/calls"
}
hold() {
  while grep -qsxF "$doing" "$STAND_IN/block"; do sleep 0.02; done
  ! grep -qsxF "$doing" "$STAND_IN/broken" || { echo "$doing is broken" >&2; exit 1; }
}
[ "$1" != version ] || { echo go version go1.99.0 linux/amd64; exit; }
module=${PWD##*/}
if [ "$1" = list ]; then
  begin "fetch $module"
  hold
  echo "fetched $module" >>"$STAND_IN/calls"
  exit
fi
if [ "$1" = mod ]; then
  echo "{\\"Dir\\": \\"$STAND_IN/module\\"}"
  exit
fi
while [ "$1" != -o ]; do shift; done
mkdir -p "$2"
for package in "$@"; do
  case $package in -o | */) continue ;; esac
  name=${package%/v[0-9]}
  [ "$name" != . ] || name=$module
  begin "$module/${name##*/}"
  printf half >"$2/${name##*/}"
  hold
  printf "whole $doing" >"$2/${name##*/}"
done
"""
# A module whose definition stores what any program wants.
_MODULE = {
    "crd/bases/things.yaml": """
kind: CustomResourceDefinition
apiVersion: apiextensions.k8s.io/v1
metadata: {name: things}
spec: {versions: [{name: v1beta2, served: true, storage: true}, {name: v1alpha2, served: true, storage: true}]}
""",
    "rbac/role.yaml": "{kind: ClusterRole, metadata: {name: manager-role}}",
    "webhook/manifests.yaml": "{kind: MutatingWebhookConfiguration, metadata: {name: hooks}}",
}
_BESIDE = """
kind: CustomResourceDefinition
apiVersion: apiextensions.k8s.io/v1
metadata: {name: requests}
spec: {versions: [{name: v1, served: true, storage: true}]}
"""
_MMDEBSTRAP = """#!/bin/sh
trap 'echo "ended image" >>"$STAND_IN/calls"; exit 1' TERM
for last; do :; done
case " $* " in *" --format=tar "*) tar -cf "$last" -T /dev/null; exit ;; esac
echo image >>"$STAND_IN/calls"
mkdir -p "$last/etc"
while grep -qsxF image "$STAND_IN/block"; do sleep 0.02; done
! grep -qsxF image "$STAND_IN/broken" || { echo "no such suite" >&2; exit 1; }
touch "$last/etc/whole"
"""


def called(build: Build) -> str:
    """What `Machine.calls` has of a program that is built."""
    return f"{build.module}/{_executable(build)}"


@dataclass
class Machine:
    """A cache and stand-ins in a folder; `code` of a run is Python in a process of its own."""

    root: Path

    def __post_init__(self) -> None:
        (self.root / "bin").mkdir()
        for name, script in {"go": _GO, "ldd": "#!/bin/sh\n", "mmdebstrap": _MMDEBSTRAP}.items():
            (self.root / "bin" / name).write_text(script)
            (self.root / "bin" / name).chmod(0o755)
        for name, text in _MODULE.items():
            path = self.root / "module/config/components" / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
        beside = self.root / "module/config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml"
        beside.parent.mkdir()
        beside.write_text(_BESIDE)

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def start(self, code: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ, "MUSTER_CACHE": str(self.cache), "STAND_IN": str(self.root),
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-c", code], cwd=REPOSITORY, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, code: str) -> str:
        """Run to the end; what it showed."""
        return self.finish(self.start(code))

    def finish(self, process: subprocess.Popen[str]) -> str:
        """Wait for a run that comes to its end; what it showed."""
        out, err = process.communicate()
        assert out.strip() == "done", err
        return err

    def reach(self, process: subprocess.Popen[str], there: Callable[[], bool]) -> None:
        """Wait until a run has come so far."""
        while not there():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)

    def run_and_cut(self, code: str, in_the_middle: Callable[[], bool], how: signal.Signals, ends: str = "") -> str:
        """Cut the run when it has come so far: with all it started as Ctrl-C does, or alone as kill -9 does.

        What the run had started does not go on without it: it `ends`, where that is killed alone.
        """
        process = self.start(code)
        self.reach(process, in_the_middle)
        (os.killpg if how is signal.SIGINT else os.kill)(process.pid, how)
        said = process.communicate()[1]
        assert process.returncode != 0
        if ends and how is signal.SIGKILL:
            wait_until(lambda: f"ended {ends}" in self.calls())
        return said

    def block(self, *names: str) -> None:
        """Have these stay in the middle, and no others."""
        self._name("block", names)

    def spoil(self, *names: str) -> None:
        """Have these fail, and no others."""
        self._name("broken", names)

    def _name(self, file: str, names: Iterable[str]) -> None:
        # Whole: a stand-in that reads it between two steps of a write would find that nothing is named.
        write_atomic(self.root / file, "".join(f"{name}\n" for name in names).encode())

    def calls(self) -> list[str]:
        """What was begun since `forget`, and what was fetched or ended."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def made(self) -> list[str]:
        """The programs and root file systems that were begun since `forget`."""
        return [call for call in self.calls() if "fetch" not in call and "ended" not in call]

    def forget(self) -> None:
        """Let `calls` begin anew."""
        (self.root / "calls").unlink(missing_ok=True)
