"""What each identity of the fleet may and may not do, on a real API server with the fleet's RBAC.

Only here: RBAC's own answer to each identity of the fleet.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.gate import (
    NODES,
    a_node,
    held_node,
    refused,
)
from tests.integration.kube import (
    MERGE_PATCH,
    Client,
    Server,
)


class TestRights:
    @pytest.mark.parametrize("user", ["muster:admitter", "system:kube-scheduler", "admin"])
    def test_admin_may_not_impersonate(self, admin: Client, user: str) -> None:
        refused(admin.request("GET", NODES, headers={"Impersonate-User": user}), "cannot impersonate")

    def test_impersonation_binds_as_well(self, root: Client, server: Server) -> None:
        name = held_node(server)
        headers = {"Impersonate-User": "someone", "Impersonate-Group": "system:masters"}
        body: dict[str, Any] = {"spec": {"taints": []}}
        refused(root.request("PATCH", f"{NODES}/{name}", body, MERGE_PATCH, headers))

    @pytest.mark.parametrize(
        "rule",
        [
            {"apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"]},
            {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["escalate", "bind"]},
            {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve", "sign"]},
            {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]},
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        ],
    )
    def test_admin_may_not_give_himself_more(self, admin: Client, rule: dict[str, Any]) -> None:
        role: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [rule]}
        role["metadata"] = {"name": "more"}
        refused(admin.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role), "forbidden")

    # What edit and admin are made of; they are filled by kube-controller-manager, which does not run here.
    @pytest.mark.parametrize(
        "role", ["cluster-admin", "system:aggregate-to-edit", "muster:admitter", "system:kubelet-api-admin"]
    )
    def test_admin_may_not_bind_what_he_does_not_hold(self, admin: Client, role: str) -> None:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "more"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "admin"}],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        refused(admin.request("POST", path, binding), "forbidden")

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("PUT", "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval"),
            ("PUT", "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/status"),
            ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token"),
            ("GET", "/api/v1/nodes/x/proxy/pods"),
            ("PATCH", "/api/v1/nodes/x/status"),
        ],
    )
    def test_admin_may_not(self, admin: Client, method: str, path: str) -> None:
        body: dict[str, Any] | None = None if method == "GET" else {}
        content_type = MERGE_PATCH if method == "PATCH" else "application/json"
        refused(admin.request(method, path, body, content_type), "cannot")

    def test_admin_can_do_the_daily_work(self, admin: Client) -> None:
        for path in ("/api/v1/pods", "/api/v1/secrets", "/apis/apps/v1/deployments", "/apis/batch/v1/jobs", NODES):
            assert admin.request("GET", path).status == 200, path
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "work"}}
        assert admin.request("POST", "/api/v1/namespaces", namespace).status == 201

    def test_admitter_can_do_its_work_only(self, admitter: Client) -> None:
        assert admitter.request("GET", "/api/v1/pods").status == 200
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "x", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": "x", "namespace": ""},
        }
        assert admitter.request("POST", "/api/v1/namespaces/default/events", event).status == 201
        refused(admitter.request("POST", NODES, a_node("any", spec={})), "cannot create")
        refused(admitter.request("GET", "/api/v1/secrets"), "cannot list")
        assert admitter.request("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests").status == 200
        refused(admitter.request("GET", "/api/v1/namespaces/kube-system/configmaps"), "cannot list")
        refused(admitter.request("DELETE", "/api/v1/namespaces/default/pods/x"), "cannot delete")

    def test_other_parts_can_read_what_they_need(self, server: Server) -> None:
        dns = server.client("muster:cluster-dns")
        for path in ("/api/v1/services", "/api/v1/pods", "/apis/discovery.k8s.io/v1/endpointslices"):
            assert dns.request("GET", path).status == 200, path
