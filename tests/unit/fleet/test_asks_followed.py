"""`muster node` beside an admitter at work: what it says that will follow does, and it reports it when it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.cli.muster import main as muster
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import Signer, new_host_key
from tests.support.admitter_helpers import Fleet, until, working
from tests.support.fake_api import FakeApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    server = FakeApi()
    server.objects |= {"configmaps": {}, "jobs": {}, "events": {}}
    yield server
    server.close()


@pytest.fixture
def fleet(api: FakeApi, tmp_path: Path) -> Iterator[Fleet]:
    """Three nodes at work; gpu-2 is out with XID 79, and the brake keeps gpu-1 in, which has the same."""
    key = tmp_path / "host_key"
    new_host_key(key)
    found = Fleet(api, Signer(key, tmp_path / "unused"))
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        found.provision(name)
        found.register(name)
        found.publish(name)
    with working(api, tmp_path, joins_per_s=1000):
        until("the admissions", lambda: all(map(found.ready, found.names)))
        for name in ("gpu-2", "gpu-1"):
            found.publish(
                name, sequence=6, verdict=Verdict.FAIL, level="watch", code="XID_FATAL",
                message="XID 79 on GPU 3: GPU has fallen off the bus",
            )  # fmt: skip
            until("its finding", lambda name=name: found.status(name)["next"]["what"] != "tested again")  # type: ignore[misc]
        yield found


@pytest.mark.slow
def test_under_a_brake_hold_quarantine_and_release_do_what_they_say(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    def run(*words: str) -> Result:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        return CliRunner().invoke(muster.cli, [*words, "--kubeconfig", str(kubeconfig)])

    assert fleet.ready("gpu-1"), "the brake keeps it at work"
    status = " ".join(run("status").stdout.split())
    assert "BRAKE: gpu-1" in status and "the share of nodes" in status
    why = " ".join(run("why", "gpu-1").stdout.split())
    assert why.index("XID 79") < why.index("taken from work: the share of nodes")
    held = run("node", "hold", "gpu-1", "--reason", "looks at it")
    assert held.exit_code == 0, held.output
    first, second = held.stdout.splitlines()
    assert "hold asked for; within seconds no new pod is placed on it; work that is on it goes on" in first
    assert second.startswith("gpu-1: done after") and "takes no new work" in second and "XID 79" in second
    assert fleet.taints("gpu-1") == {"preflight:NoSchedule"}
    why = " ".join(run("why", "gpu-1").stdout.split())
    places = [why.index(text) for text in ("XID 79", "held by", "the share of nodes")]
    assert places == sorted(places), why
    assert "BRAKE" not in run("status").stdout, "nothing takes new work that should not"
    let_go = run("node", "release", "gpu-1", "--reason", "looked at it")
    assert let_go.exit_code == 0 and "the hold that closed it is over" in let_go.stdout, let_go.output
    assert "quarantined (XID_FATAL): the share of nodes" in let_go.stdout, "its work is the brake's again"
    assert fleet.taints("gpu-1") == {"preflight:NoSchedule"}
    out = run("node", "quarantine", "gpu-1", "--reason", "swap it")
    assert out.exit_code == 0 and "done after" in out.stdout, out.output
    assert {"preflight:NoSchedule", "quarantine:NoSchedule"} <= fleet.taints("gpu-1")
    kept = run("node", "release", "gpu-1", "--reason", "x")
    assert "it is quarantined (XID_FATAL" in kept.stdout and kept.exit_code == 0
    back = run("node", "hold", "gpu-3", "--reason", "x"), run("node", "release", "gpu-3", "--reason", "x")
    assert "done after" in back[1].stdout and "it is ready" in back[1].stdout
    assert fleet.ready("gpu-3")
