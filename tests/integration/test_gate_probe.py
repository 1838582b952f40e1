"""The gate probe against a real API server: it says 0 when the gate is gone, 1 again, and counts who goes round it.

Only here: the probe meets a gate that is gone, another one, a server that refuses it, and a real audit log.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_burnin.admission.gate_probe.probe import Place, once
from tests.integration.gate import EXECUTE, NODES, SCHEDULE, a_node, refused
from tests.integration.kube import APPLY, Client, Server, until

PROBE_NODE = "muster-gate-probe"
PATH = f"{NODES}/{PROBE_NODE}?fieldManager=x"


class Probe:
    """The probe on that server's host."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.admission = server.directory / "admission"
        self.metrics = folder / "muster_gate.prom"
        self.place = Place(
            server.kubeconfig("muster:gate-probe"),
            self.admission,
            server.directory / "audit.log",
            folder,
            self.metrics,
        )
        self.said: list[str] = []
        self.now_s = 1000.0
        (self.admission / "policy.hash").write_text(f"{server.loaded_hash()}\n")

    def look(self) -> int:
        self.said.clear()
        self.now_s += 60
        return once(self.place, self.said.append, self.now_s)

    def number(self, name: str) -> float | None:
        """The value of a series, None without it."""
        lines = [line for line in self.metrics.read_text().splitlines() if line.startswith(f"{name} ")]
        return float(lines[0].rpartition(" ")[2]) if lines else None


@pytest.fixture
def probe(server: Server, tmp_path: Path) -> Probe:
    return Probe(server, tmp_path)


class TestGate:
    def test_says_that_it_holds_and_that_it_is_gone_and_that_it_holds_again(self, server: Server, probe: Probe) -> None:
        files = server.policy_files()
        assert probe.look() == 0, probe.said
        assert probe.number("muster_gate_refused") == 1
        expected = server.loaded_hash()
        assert probe.number(f'muster_gate_policy_hash{{hash="{expected}"}}') == 1
        try:
            server.load({name: text for name, text in files.items() if name != "gate.yaml"})
            until("the gate's end", lambda: probe.look() == 1)
            assert probe.number("muster_gate_refused") == 0
            assert "the gate is open" in probe.said[-1]
            # What was installed is still what it is compared with.
            assert probe.number(f'muster_gate_policy_hash{{hash="{expected}"}}') is None
            assert probe.number(f'muster_gate_policy_expected{{hash="{expected}"}}') == 1
        finally:
            server.load(files)
        until("the gate's return", lambda: probe.look() == 0)
        assert probe.number("muster_gate_refused") == 1

    def test_says_that_another_policy_is_loaded(self, server: Server, probe: Probe) -> None:
        files = server.policy_files()
        try:
            server.load({**files, "gate.yaml": files["gate.yaml"].replace("'system-1'", "'system-1', 'system-9'")})
            assert probe.look() == 1
            assert probe.number("muster_gate_refused") == 1
            assert "were installed" in probe.said[-1]
        finally:
            server.load(files)

    def test_without_an_answer_nothing_says_that_it_holds(self, server: Server, probe: Probe) -> None:
        assert probe.look() == 0
        checked_s = probe.number("muster_gate_checked_timestamp_seconds")
        probe.place = Place(
            server.kubeconfig("nobody"), probe.admission, probe.place.audit_log, probe.place.state_dir, probe.metrics
        )
        assert probe.look() == 3
        assert "forbidden" in probe.said[-1]
        assert probe.number("muster_gate_refused") is None
        assert probe.number("muster_gate_checked_timestamp_seconds") == checked_s

    def test_a_node_of_that_name_is_no_answer(self, server: Server, probe: Probe) -> None:
        root = server.client("root", ["system:masters"])
        node = a_node(PROBE_NODE, spec={"taints": [SCHEDULE, EXECUTE]})
        assert root.request("POST", NODES, node).status == 201
        try:
            assert probe.look() == 3
            assert f"there is a node {PROBE_NODE}" in probe.said[-1]
        finally:
            assert root.request("DELETE", f"{NODES}/{PROBE_NODE}").status == 200


class TestLeases:
    def test_when_somebody_last_led(self, server: Server, probe: Probe) -> None:
        scheduler = 'muster_lease_renewed_timestamp_seconds{lease="kube-scheduler"}'
        assert probe.look() == 0
        assert probe.number(scheduler) == 0
        root, leases = (
            server.client("root", ["system:masters"]),
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
        )
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "kube-scheduler"},
            "spec": {"renewTime": "2026-11-01T00:00:00.123456Z"},
        }
        until("the namespace", lambda: root.request("GET", "/api/v1/namespaces/kube-system").status == 200)
        assert root.request("POST", leases, lease).status == 201
        assert probe.look() == 0
        assert probe.number(scheduler) == 1793491200


class TestRights:
    """Who asks can do nothing but ask."""

    @pytest.fixture
    def asker(self, server: Server) -> Client:
        return server.client("muster:gate-probe")

    def test_asking_is_not_creating(self, asker: Client) -> None:
        node = a_node(PROBE_NODE, spec={"taints": [SCHEDULE, EXECUTE]})
        refused(asker.request("PATCH", PATH, node, APPLY), "muster:gate-probe only asks")
        assert asker.request("PATCH", f"{PATH}&dryRun=All", node, APPLY).status == 201

    @pytest.mark.parametrize(("method", "path", "content_type"), [
        ("POST", f"{NODES}?dryRun=All", "application/json"),
        ("PATCH", f"{NODES}/gpu-1?fieldManager=x&dryRun=All", APPLY),
        ("GET", NODES, "application/json"),
        ("DELETE", f"{NODES}/{PROBE_NODE}", "application/json"),
        ("GET", "/api/v1/pods", "application/json"),
    ])  # fmt: skip
    def test_nothing_else(self, asker: Client, method: str, path: str, content_type: str) -> None:
        body = None if method in ("GET", "DELETE") else a_node("gpu-1", spec={"taints": [SCHEDULE, EXECUTE]})
        reply = asker.request(method, path, body, content_type)
        refused(reply, 'muster:gate-probe" cannot')


class TestAudit:
    @pytest.mark.parametrize("headers", [
        {"Impersonate-User": "muster:admitter"},
        {"Impersonate-User": "someone", "Impersonate-Group": "muster:admitter"},
    ])  # fmt: skip
    def test_impersonation_of_the_admitter_is_counted(
        self, server: Server, probe: Probe, headers: dict[str, str]
    ) -> None:
        series = 'muster_audit_impersonations_total{user="muster:admitter"}'
        probe.look()
        before = probe.number(series)
        assert before is not None
        server.client("break-glass", ["system:masters"]).request("GET", NODES, headers=headers)
        probe.look()
        assert probe.number(series) == before + 1
        assert any("muster:admitter was impersonated by break-glass from 127.0.0.1" in line for line in probe.said)
        probe.look()
        assert probe.number(series) == before + 1

    def test_taking_the_lease_in_its_name_is_counted(self, server: Server, probe: Probe) -> None:
        series = 'muster_audit_impersonations_total{user="muster:admitter"}'
        probe.look()
        before = probe.number(series)
        assert before is not None
        # Asked and not done: other tests of this server may have made it, which counts no less.
        path = "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases?dryRun=All"
        root = server.client("break-glass", ["system:masters"])
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "muster-admitter"}}
        assert root.request("POST", path, lease, headers={"Impersonate-User": "muster:admitter"}).status in (201, 409)
        probe.look()
        assert probe.number(series) == before + 1

    def test_use_of_break_glass_is_counted_apart(self, server: Server, probe: Probe) -> None:
        probe.look()
        before, series = probe.number("muster_audit_break_glass_total"), "muster_audit_impersonations_total"
        impersonations = [line for line in probe.metrics.read_text().splitlines() if line.startswith(series)]
        assert before is not None
        server.client("admin", ["muster:admins"]).request("GET", NODES)
        server.client("break-glass", ["system:masters"]).request("GET", NODES)
        probe.look()
        assert probe.number("muster_audit_break_glass_total") == before + 1
        assert [line for line in probe.metrics.read_text().splitlines() if line.startswith(series)] == impersonations

    def test_the_admitter_itself_is_not_counted(self, server: Server, probe: Probe) -> None:
        probe.look()
        before = probe.metrics.read_text().partition("muster_audit_gaps_total")[0].partition("# HELP muster_audit")[2]
        server.client("muster:admitter").request("GET", NODES)
        probe.look()
        assert probe.metrics.read_text().partition("muster_audit_gaps_total")[0].endswith(before)
