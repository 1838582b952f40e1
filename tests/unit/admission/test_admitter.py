"""The admitter against an API server and with evidence signed for real."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.admitter import Admitter, NodeReport, NodeSpec, Settings, admit
from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system import known_hosts as kh
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, BOOT2, MACHINE, NOW, Signer, make_node, new_host_key
from tests.support.fake_api import FakeApi, Refused

SPEC = NodeSpec("gpu-1", "10.0.0.1")


@pytest.fixture
def admitter(api: FakeApi, kube: KubeApi, signer: Signer, tmp_path: Path) -> Admitter:
    api.put_node(make_node())
    return Admitter(kube, Settings(signer.known_hosts, tmp_path / "admission"), now=lambda: NOW)


def run(admitter: Admitter, spec: NodeSpec = SPEC) -> NodeReport:
    return admitter.run([spec])[0]


def tainted(api: FakeApi, name: str = "gpu-1") -> bool:
    return any(t["key"] == "muster.dev/preflight" for t in api.nodes[name]["spec"]["taints"])


def test_a_node_is_admitted_and_a_second_pass_writes_nothing(
    admitter: Admitter, api: FakeApi, signer: Signer, tmp_path: Path
) -> None:
    signer.publish(api)
    report = run(admitter)
    assert (report.state, report.verdict, report.action, report.sequence) == ("ready", "pass", "admit", 5)
    assert not tainted(api)
    assert api.writes() == ["/api/v1/nodes/gpu-1", "/api/v1/nodes/gpu-1/status"]
    assert {kind for method, _, kind in api.requests if method == "PATCH"} == {"application/json-patch+json"}
    ledger = tmp_path / "admission" / "gpu-1.json"
    assert ledger.stat().st_mode & 0o777 == 0o600
    before = (len(api.writes()), ledger.stat().st_mtime_ns)
    assert run(admitter).action == "nothing"
    assert (len(api.writes()), ledger.stat().st_mtime_ns) == before


def test_without_apply_nothing_is_written(admitter: Admitter, api: FakeApi, signer: Signer, tmp_path: Path) -> None:
    signer.publish(api)
    admitter.apply = False
    assert run(admitter).action == "admit"
    assert api.writes() == [] and not (tmp_path / "admission").exists()


def test_an_absent_node(admitter: Admitter) -> None:
    assert run(admitter, NodeSpec("gpu-9", "10.0.0.1")).state == "absent"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"node": "gpu-2"}, "EVIDENCE_NODE"),
        ({"machine_id": "b" * 32}, "EVIDENCE_NODE"),
        ({"boot_id": BOOT2}, "EVIDENCE_BOOT"),
        ({"simulated": True}, "EVIDENCE_SIMULATED"),
        ({"finished_at": "2026-11-21T12:05:00Z"}, "EVIDENCE_SKEW"),
        ({"finished_at": "2026-10-01T00:00:00Z"}, "EVIDENCE_EXPIRED"),
        ({"verdict": Verdict.FAIL}, "FAIL"),
    ],
)
def test_evidence_that_does_not_hold(
    admitter: Admitter, api: FakeApi, signer: Signer, changes: dict[str, Any], code: str
) -> None:
    signer.publish(api, **changes)
    report = run(admitter)
    assert (report.state, report.code) == ("held", code)
    assert tainted(api)


def test_a_changed_byte_and_a_foreign_key_are_refused(
    admitter: Admitter, api: FakeApi, signer: Signer, tmp_path: Path
) -> None:
    signer.publish(api)
    annotations = api.nodes["gpu-1"]["metadata"]["annotations"]
    annotations["muster.dev/evidence"] = annotations["muster.dev/evidence"].replace("quick", "quack")
    assert run(admitter).code == "EVIDENCE_SIGNATURE"
    new_host_key(tmp_path / "other")
    signer.key = tmp_path / "other"
    signer.publish(api)
    assert run(admitter).code == "EVIDENCE_SIGNATURE"
    api.nodes["gpu-1"]["metadata"]["annotations"]["muster.dev/evidence"] = "{"
    assert run(admitter).code == "EVIDENCE_MALFORMED"
    assert tainted(api)


def test_an_old_pass_does_not_replace_a_newer_fail(admitter: Admitter, api: FakeApi, signer: Signer) -> None:
    signer.publish(api, sequence=6, verdict=Verdict.FAIL)
    assert run(admitter).verdict == "fail"
    signer.publish(api, sequence=5)
    report = run(admitter)
    assert (report.state, report.code) == ("held", "EVIDENCE_REPLAYED")
    assert tainted(api)
    signer.publish(api, sequence=6, report_sha256="9" * 64)
    assert run(admitter).code == "EVIDENCE_REPLAYED"
    signer.publish(api, sequence=7)
    assert run(admitter).state == "ready"


def test_a_fail_counts_even_while_the_hosts_clock_is_wrong(admitter: Admitter, api: FakeApi, signer: Signer) -> None:
    signer.publish(api, sequence=6, verdict=Verdict.FAIL, finished_at="2026-11-21T13:00:00Z")
    assert run(admitter).verdict == "fail"
    signer.publish(api, sequence=5)
    assert run(admitter).code == "EVIDENCE_REPLAYED"


def test_a_machine_installed_anew_with_a_new_key_starts_its_sequence_again(
    admitter: Admitter, api: FakeApi, signer: Signer, tmp_path: Path
) -> None:
    signer.publish(api, sequence=50)
    run(admitter)
    kind, blob, *_ = new_host_key(tmp_path / "new_key").split()
    signer.known_hosts.write_text("")
    kh.record(kh.load(signer.known_hosts), [("10.0.0.1", 22, kh.HostKey(kind, blob))])
    signer.key = tmp_path / "new_key"
    signer.publish(api, sequence=1)
    assert run(admitter).state == "ready"


def test_a_host_without_pinned_key_is_held(admitter: Admitter, api: FakeApi, signer: Signer) -> None:
    signer.publish(api)
    report = run(admitter, NodeSpec("gpu-1", "10.9.9.9"))
    assert (report.state, report.code) == ("held", "HOST_KEY_UNKNOWN") and "10.9.9.9" in report.message


def test_a_reboot_is_tainted_then_admitted_with_new_evidence(admitter: Admitter, api: FakeApi, signer: Signer) -> None:
    signer.publish(api)
    run(admitter)
    api.put_node({**api.nodes["gpu-1"], "status": make_node(ready="Unknown")["status"]})
    assert run(admitter).action == "retaint" and tainted(api)
    api.put_node({**api.nodes["gpu-1"], "status": make_node(boot=BOOT2)["status"]})
    assert run(admitter).code == "EVIDENCE_BOOT" and tainted(api)
    signer.publish(api, boot_id=BOOT2, sequence=6)
    assert run(admitter).action == "admit" and not tainted(api)


def test_simulated_evidence_is_admitted_where_allowed(admitter: Admitter, api: FakeApi, signer: Signer) -> None:
    signer.publish(api, simulated=True)
    report = run(admitter, NodeSpec("gpu-1", "10.0.0.1", allow_simulated=True))
    assert report.state == "ready" and report.simulated


def test_a_conflict_reads_again_and_decides_again(admitter: Admitter, api: FakeApi, signer: Signer) -> None:
    signer.publish(api)
    interfered: list[str] = []

    def interfere(path: str) -> None:
        if not interfered:
            interfered.append(path)
            # Between read and write the node fails: the admission decided on must not happen.
            signer.publish(api, sequence=6, verdict=Verdict.FAIL)

    api.before_write = interfere
    report = run(admitter)
    assert (report.state, report.verdict) == ("held", "fail")
    assert tainted(api)


def test_a_conflict_of_the_status_alone_is_made_good(admitter: Admitter, api: FakeApi, signer: Signer) -> None:
    signer.publish(api)
    paths: list[str] = []

    def heartbeat(path: str) -> None:
        paths.append(path)
        if len(paths) == 2:
            api.put_node(api.nodes["gpu-1"])

    api.before_write = heartbeat
    assert run(admitter).action == "admit" and not tainted(api)
    assert [path.rpartition("/")[2] for path in paths] == ["gpu-1", "status", "status"]
    assert run(admitter).action == "nothing"


def test_a_node_that_keeps_changing_is_given_up_with_an_error(admitter: Admitter, api: FakeApi, signer: Signer) -> None:
    signer.publish(api)
    api.before_write = lambda path: api.put_node(api.nodes["gpu-1"])
    with pytest.raises(ApiError, match="gpu-1: the node kept changing"):
        run(admitter)
    assert len(api.writes()) == 5 and tainted(api)


def test_a_refused_patch_is_an_error_that_names_server_and_fix(
    admitter: Admitter, api: FakeApi, signer: Signer
) -> None:
    def refuse(path: str) -> None:
        raise Refused(403, 'User "x" cannot patch nodes')

    signer.publish(api)
    api.before_write = refuse
    with pytest.raises(ApiError, match=r"127\.0\.0\.1.*cannot patch nodes.*RBAC"):
        run(admitter)


def test_a_broken_ledger_is_an_error_not_a_new_start(
    admitter: Admitter, api: FakeApi, signer: Signer, tmp_path: Path
) -> None:
    signer.publish(api)
    (tmp_path / "admission").mkdir()
    (tmp_path / "admission" / "gpu-1.json").write_text("{}")
    with pytest.raises(GpuBurninError, match=r"gpu-1\.json"):
        run(admitter)
    assert api.writes() == []


@pytest.mark.parametrize("name", ["../x", "A", "a/b", "", "-a", "a" * 254])
def test_what_is_no_node_name_makes_no_file(admitter: Admitter, name: str, tmp_path: Path) -> None:
    api_node = make_node(name)
    admitter.api.nodes = lambda: {name: api_node}  # type: ignore[method-assign]
    with pytest.raises(GpuBurninError, match="is not a node name"):
        run(admitter, NodeSpec(name, "10.0.0.1"))


def test_expiry_takes_one_node_at_a_time_from_work(
    api: FakeApi, admitter: Admitter, signer: Signer, kube: KubeApi
) -> None:
    names = [f"gpu-{n}" for n in range(1, 5)]
    specs = [NodeSpec(name, "10.0.0.1") for name in names]
    for name in names:
        api.put_node(make_node(name))
        signer.publish(api, name)
    assert all(r.state == "ready" for r in admitter.run(specs))
    admitter.settings = Settings(signer.known_hosts, admitter.settings.ledger_dir, ttl_s=60.0)
    reports = admitter.run(specs)
    assert [r.action for r in reports].count("retaint") == 1
    assert [r.state for r in reports].count("ready") == 3
    assert sum(tainted(api, name) for name in names) == 1
    # The next pass takes no other while the first is out.
    assert [r.action for r in admitter.run(specs)] == ["nothing"] * 4


def test_waiting_ends_when_the_expected_node_has_published(api: FakeApi, admitter: Admitter, signer: Signer) -> None:
    del api.nodes["gpu-1"]
    steps = [lambda: api.put_node(make_node()), lambda: signer.publish(api)]
    reports, missing = admit(admitter, [SPEC], ["gpu-1"], 100.0, clock=lambda: 0.0, sleep=lambda s: steps.pop(0)())
    assert missing == {} and steps == []
    assert (reports[0].state, reports[0].action) == ("ready", "admit")


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda api, signer: api.nodes.clear(), "has not registered"),
        (lambda api, signer: None, "has not published evidence"),
        (lambda api, signer: signer.publish(api, boot_id=BOOT2), f"evidence of boot {BOOT2} but runs boot {BOOT}"),
        (lambda api, signer: api.put_node(make_node(ready="Unknown")), "does not report its status"),
    ],
)
def test_what_is_missing_at_the_deadline_is_said(
    api: FakeApi, admitter: Admitter, signer: Signer, prepare: Any, sentence: str
) -> None:
    prepare(api, signer)
    ticks = iter(range(100))
    _, missing = admit(admitter, [SPEC], ["gpu-1"], 3.0, clock=lambda: next(ticks), sleep=lambda s: None)
    assert sentence in missing["gpu-1"]


def test_a_held_node_is_not_waited_for(api: FakeApi, admitter: Admitter, signer: Signer) -> None:
    signer.publish(api, verdict=Verdict.FAIL)
    reports, missing = admit(admitter, [SPEC], ["gpu-1"], 100.0, sleep=lambda s: pytest.fail("waited"))
    assert missing == {} and reports[0].state == "held"


def test_many_nodes_are_read_in_pages_and_handled_together(api: FakeApi, admitter: Admitter, signer: Signer) -> None:
    api.page = 7
    annotation = signer.annotation()
    for n in range(40):
        api.put_node(make_node(f"gpu-{n}", annotations={"muster.dev/evidence": annotation}))
    admitter.api = _Counting(admitter.api)
    reports = admitter.run([NodeSpec(f"gpu-{n}", "10.0.0.1") for n in range(40)])
    assert [r.name for r in reports] == [f"gpu-{n}" for n in range(40)]
    assert [r.name for r in reports if r.state == "ready"] == ["gpu-1"]
    assert MACHINE and len(admitter.api.threads) > 1


class _Counting:
    """Passes calls on and notes the threads they come from."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        self.threads.add(threading.get_ident())
        return getattr(self.inner, name)
