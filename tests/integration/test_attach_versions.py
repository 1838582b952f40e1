"""What attaching finds in API servers of older Kubernetes: those that 1.36.3 emulates, and 1.35.4 where it is built.

Only here: a version without MutatingAdmissionPolicy, where the webhook is the only way; beta ones are left alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest import mock

import pytest

from tests.integration.attach_cluster import SETTINGS, TAINT, Cluster, started
from tests.integration.kube import binaries, until
from tests.lab.older import OLDER_VERSION, older_dir

pytestmark = pytest.mark.soak
PAGE = Path(__file__).resolve().parents[2] / "docs/operations/attach.md"
EMULATED = ("1.33", "1.34", "1.35")
# MutatingAdmissionPolicy of before 1.36, as who wants it has it; 1.36.3 does not start so as it emulates an older one.
_BETA = (
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    "--feature-gates=MutatingAdmissionPolicy=true",
)
WORDS = ["attach", "--image", SETTINGS.image, "--gpu-nodes", "example.com/gpu=yes", "--cluster", "test", "--enforce"]


def attach_and_leave(directory: Path, *options: str) -> str:
    """Attach, enforce, let a Node in by the webhook alone, detach; the version that the API server says."""
    with started(directory, *options) as cluster:
        before = cluster.objects()
        done = cluster.muster(*WORDS, "--level", "quick", "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["taints_by"] == "webhook" and "no MutatingAdmissionPolicy" in " ".join(said["missing"])
        assert cluster.muster(*WORDS, "--taint-by", "policy").returncode == 1
        machine = cluster.machine("gpu-1")
        with cluster.webhook():
            until("the webhook is used", lambda: machine.try_to_register().status == 201)
        assert machine.taints() == [TAINT]
        assert cluster.machine("gpu-2").try_to_register().status == 403
        # The node's name is in the token of its pod: its agent may say who it is, and for no other node.
        machine.enrol()
        assert cluster.muster("attach", "approve", "gpu-1", "--level", "quick").returncode == 0
        done = cluster.muster("detach", "--cluster", "test")
        assert done.returncode == 0, done.stderr
        cluster.end_namespace()
        until(
            "nothing is left", lambda: cluster.objects().keys() - before.keys() <= {"nodes//gpu-1"} | pods(cluster), 30
        )
        return str(said["version"])


def pods(cluster: Cluster) -> set[str]:
    return {name for name in cluster.objects() if name.startswith("pods/")}


@pytest.mark.parametrize("version", EMULATED)
def test_as_an_older_one(version: str, tmp_path: Path) -> None:
    attach_and_leave(tmp_path, f"--emulated-version={version}")


@pytest.mark.parametrize("options", [(), _BETA], ids=["beta off", "beta on"])
def test_an_older_one(options: tuple[str, ...], tmp_path: Path) -> None:
    """Where MUSTER_OLDER_BINARIES, or the cache of the upgrade's tests, has kube-apiserver 1.35.4."""
    place = Path(os.environ.get("MUSTER_OLDER_BINARIES", older_dir()))
    now = binaries()
    if now is None or not (place / "kube-apiserver").exists():
        pytest.skip(f"no kube-apiserver {OLDER_VERSION} in {place}")
    of_both = tmp_path / "bin"
    of_both.mkdir()
    for name, folder in (("etcd", now), ("kube-apiserver", place)):
        (of_both / name).symlink_to((folder / name).resolve())
    with mock.patch.dict(os.environ, {"MUSTER_BINARIES": str(of_both)}):
        assert attach_and_leave(tmp_path, *options) == f"v{OLDER_VERSION}"


def test_the_page_names_what_was_tried() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| 1.")]
    emulated = {line.split("|")[1].strip() for line in rows if "emulated" in line}
    # Of the version of OLDER_VERSION it names the program itself.
    assert emulated == {version for version in EMULATED if not OLDER_VERSION.startswith(f"{version}.")}
    assert any(OLDER_VERSION in line for line in rows)
    assert {line.split("|")[1].strip() for line in rows if "untried" in line} == {"1.30", "1.31", "1.32"}
