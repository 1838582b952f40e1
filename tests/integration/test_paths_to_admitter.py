"""Ways from an everyday admin, or from an account that does more, to the admitter: docs/reference/paths-to-admitter.md.

Only here: the API server's answers to who tries to become the admitter, or to change what the admitter writes.
"""

from __future__ import annotations

import base64
from itertools import product
from typing import Any

import pytest

from gpu_burnin.api.names import ADMITTER_USER, SYSTEM_NAMESPACE
from tests.integration.gate import HOOK_KINDS, NODES, hook, matching, refused
from tests.integration.kube import JSON_PATCH, MERGE_PATCH, Client, Part, Reply, Server, binaries, ended, until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
SYSTEM = "/api/v1/namespaces/kube-system"
AGGREGATION = "clusterrole-aggregation-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"
ACCOUNTS, RIGHTS = "muster-controller-accounts", "muster-rights"
GROUPS, WEBHOOKS = "muster-api-groups", "muster-webhooks"


class Bearer:
    """Who has a token."""

    def __init__(self, server: Server, token: str) -> None:
        self.client, self.headers = server.client(None), {"Authorization": f"Bearer {token}"}

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Reply:
        return self.client.request(method, path, body, content_type, self.headers)


@pytest.fixture(scope="module")
def manager(server: Server) -> Client:
    return server.client(CONTROLLER_MANAGER)


@pytest.fixture(scope="module")
def aggregation(server: Server, root: Client, manager: Client) -> Bearer:
    """The controller that gathers roles, with a token as kube-controller-manager gets it."""
    account(root, "kube-system", AGGREGATION)
    reply = manager.request("POST", f"{SYSTEM}/serviceaccounts/{AGGREGATION}/token", token_request())
    assert reply.status == 201, reply.message
    return Bearer(server, reply.body["status"]["token"])


@pytest.fixture(scope="module")
def strong(server: Server, root: Client) -> Client:
    """Who was given everything, as an installer is, and is not break-glass."""
    bound = binding("ClusterRoleBinding", "everything", "cluster-admin", "installer")
    assert root.request("POST", f"{RBAC}/clusterrolebindings", bound).status == 201
    return server.client("installer")


def account(root: Client, namespace: str, name: str) -> None:
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    assert root.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", made).status in (201, 409)


def token_request() -> dict[str, Any]:
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}


def pod(name: str, who: str) -> dict[str, Any]:
    spec = {"serviceAccountName": who, "containers": [{"name": "main", "image": "registry.example/busybox"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def secret(name: str, of: str) -> dict[str, Any]:
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token"}
    return {**made, "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": of}}}


def role(kind: str, name: str, *rules: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "rules": list(rules),
    }


def binding(kind: str, name: str, of: str, user: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": of},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }


def rule(groups: str, resources: str, verbs: str, names: str = "") -> dict[str, Any]:
    """A rule from words; "core" is the API group without a name."""
    made = {"apiGroups": ["" if group == "core" else group for group in groups.split()]}
    named = {"resourceNames": names.split()} if names else {}
    return {**made, "resources": resources.split(), "verbs": verbs.split(), **named}


def single(rules: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """Each right by itself: API group, resource, verb."""
    return {one for rule in rules for one in product(rule["apiGroups"], rule["resources"], rule["verbs"])}


IMPERSONATING = [
    rule("core", "users", "impersonate"),
    rule("core", "users", "impersonate", ADMITTER_USER),
    rule("core", "users", "impersonate", f"alice {ADMITTER_USER}"),
    rule("core", "groups", "get impersonate", "system:masters"),
    rule("core", "serviceaccounts", "impersonate", AGGREGATION),
    rule("core", "users", "*"),
    rule("core", "*", "*"),
    rule("*", "*", "*"),
    rule("authentication.k8s.io", "userextras/scopes", "impersonate"),
    rule("authentication.k8s.io", "users", "impersonate:user-info"),
    rule("authentication.k8s.io", "users", "impersonate:*"),
    rule("authentication.k8s.io", "serviceaccounts", "impersonate:serviceaccount"),
    rule("core", "nodes", "impersonate-on:user-info:patch"),
    rule("core", "nodes", "impersonate-on:*"),
]
TAKING = [
    rule("rbac.authorization.k8s.io", "clusterroles", "bind"),
    rule("rbac.authorization.k8s.io", "clusterroles", "get escalate", "edit"),
    rule("rbac.authorization.k8s.io", "*", "*"),
]


class TestAccounts:
    def test_of_the_controllers_are_all_known(self, root: Client, manager: Client) -> None:
        """Those that this Kubernetes has roles for, as the running API server has made them."""
        named = set()
        for kind in ("clusterrolebindings", "rolebindings"):
            for item in root.request("GET", f"{RBAC}/{kind}").body["items"]:
                subjects = item.get("subjects", [])
                named |= {one["name"] for one in subjects if one.get("namespace") == "kube-system"}
        # The cluster's DNS is a pod elsewhere, and no controller.
        assert len(named - {"kube-dns"}) > 40
        for name in sorted(named - {"kube-dns"}):
            account(root, "kube-system", name)
            refused(root.request("POST", f"{SYSTEM}/pods", pod("a", name)), ACCOUNTS)

    @pytest.mark.parametrize("who", ["root", "admin", "manager"])
    def test_have_no_pods(self, request: pytest.FixtureRequest, aggregation: Bearer, who: str) -> None:
        client = request.getfixturevalue(who)
        refused(client.request("POST", f"{SYSTEM}/pods", pod("a", AGGREGATION)), ACCOUNTS if who != "manager" else "")

    def test_have_no_tokens_in_secrets(self, root: Client, admin: Client, aggregation: Bearer) -> None:
        for client in (root, admin):
            refused(client.request("POST", f"{SYSTEM}/secrets", secret("token", AGGREGATION)), ACCOUNTS)

    def test_are_not_put_into_secrets_later(self, root: Client, admin: Client, aggregation: Bearer) -> None:
        account(root, "kube-system", "mine")
        assert admin.request("POST", f"{SYSTEM}/secrets", secret("mine", "mine")).status == 201
        change = secret("mine", AGGREGATION)["metadata"]["annotations"]
        reply = admin.request("PATCH", f"{SYSTEM}/secrets/mine", {"metadata": {"annotations": change}}, MERGE_PATCH)
        refused(reply, ACCOUNTS)

    def test_give_tokens_to_their_controller_manager_alone(
        self, root: Client, admin: Client, strong: Client, aggregation: Bearer
    ) -> None:
        path = f"{SYSTEM}/serviceaccounts/{AGGREGATION}/token"
        for client in (root, strong):
            refused(client.request("POST", path, token_request()), ACCOUNTS)
        refused(admin.request("POST", path, token_request()), "cannot create")

    def test_of_others_work_there(self, root: Client, admin: Client) -> None:
        for namespace in ("kube-system", SYSTEM_NAMESPACE):
            account(root, namespace, "metrics")
            path = f"/api/v1/namespaces/{namespace}/pods"
            assert admin.request("POST", path, pod("metrics", "metrics")).status == 201

    @pytest.mark.parametrize(
        "given",
        [
            rule("core", "users", "impersonate", ADMITTER_USER),
            rule("core", "users", "impersonate", "muster:provisioner"),
            rule("core", "groups", "impersonate", "system:masters"),
            rule("core", "serviceaccounts", "impersonate"),
            rule("rbac.authorization.k8s.io", "clusterroles", "escalate"),
            rule("rbac.authorization.k8s.io", "clusterroles", "bind"),
        ],
    )
    @pytest.mark.parametrize("namespace", ["kube-system", SYSTEM_NAMESPACE])
    def test_that_may_become_another_have_no_pods_there(
        self, root: Client, admin: Client, given: dict[str, Any], namespace: str
    ) -> None:
        account(root, namespace, "helper")
        subject = {"kind": "ServiceAccount", "name": "helper", "namespace": namespace}
        bound = {**binding("ClusterRoleBinding", "helper", "helper", ""), "subjects": [subject]}
        assert root.request("POST", f"{RBAC}/clusterroles", role("ClusterRole", "helper", given)).status == 201
        try:
            assert root.request("POST", f"{RBAC}/clusterrolebindings", bound).status == 201
            path = f"/api/v1/namespaces/{namespace}/pods"

            def closed() -> bool:
                return admin.request("POST", f"{path}?dryRun=All", pod("helper", "helper")).status == 403

            # The authorizer knows of a role a moment after it was written.
            until("the account to be strong", closed, 10)
            refused(admin.request("POST", path, pod("helper", "helper")), "could become the admitter")
        finally:
            root.request("DELETE", f"{RBAC}/clusterrolebindings/helper")
            root.request("DELETE", f"{RBAC}/clusterroles/helper")


class TestRights:
    @pytest.mark.parametrize("given", [*IMPERSONATING, *TAKING])
    def test_are_given_by_break_glass_alone(
        self, root: Client, strong: Client, aggregation: Bearer, given: dict[str, Any]
    ) -> None:
        path = f"{RBAC}/clusterroles"
        made = role("ClusterRole", "more", given)
        for client in (strong, aggregation):
            reply = client.request("POST", path, made)
            refused(reply, RIGHTS if client is strong else "")
            change = [{"op": "add", "path": "/rules/-", "value": given}]
            refused(client.request("PATCH", f"{path}/muster:admin", change, JSON_PATCH), RIGHTS)
        reply = root.request("POST", f"{path}?dryRun=All", made)
        assert reply.status == 201, reply.message

    def test_in_namespaces_of_the_control_plane_too(self, strong: Client) -> None:
        given = rule("core", "serviceaccounts", "impersonate")
        path = f"{RBAC}/namespaces/kube-system/roles"
        refused(strong.request("POST", path, role("Role", "more", given)), RIGHTS)
        elsewhere = strong.request("POST", f"{RBAC}/namespaces/default/roles", role("Role", "more", given))
        assert elsewhere.status == 201, elsewhere.message

    @pytest.mark.parametrize(
        "given",
        [
            rule("core", "users", "impersonate", "alice bob"),
            rule("apps batch", "*", "*"),
            rule("rbac.authorization.k8s.io", "roles", "get list watch create"),
            rule("kueue.x-k8s.io", "*", "*"),
        ],
    )
    def test_that_reach_nobody_of_the_fleet_are_free(self, strong: Client, given: dict[str, Any]) -> None:
        reply = strong.request("POST", f"{RBAC}/clusterroles?dryRun=All", role("ClusterRole", "less", given))
        assert reply.status == 201, reply.message

    @pytest.mark.parametrize("of", ["cluster-admin", "edit", "system:controller:clusterrole-aggregation-controller"])
    def test_of_roles_that_impersonate_are_not_bound(self, strong: Client, of: str) -> None:
        refused(
            strong.request("POST", f"{RBAC}/clusterrolebindings", binding("ClusterRoleBinding", "more", of, "mallory")),
            RIGHTS,
        )
        path = f"{RBAC}/namespaces/kube-system/rolebindings"
        refused(strong.request("POST", path, binding("RoleBinding", "more", of, "mallory")), RIGHTS)

    def test_are_not_gathered_by_a_label(self, root: Client, admin: Client, strong: Client) -> None:
        """A role with the label is added to `edit`: neither a new role nor an old one gets more that way."""
        label = {"labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}
        refused(
            strong.request("POST", f"{RBAC}/clusterroles", role("ClusterRole", "more", IMPERSONATING[0], **label)),
            RIGHTS,
        )
        for name in ("cluster-admin", "muster:admitter"):
            reply = admin.request("PATCH", f"{RBAC}/clusterroles/{name}", {"metadata": label}, MERGE_PATCH)
            refused(reply, "forbidden")
        selector = {"clusterRoleSelectors": [{"matchLabels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}]}
        made = {**role("ClusterRole", "everything"), "aggregationRule": selector}
        refused(admin.request("POST", f"{RBAC}/clusterroles", made), "forbidden")

    def test_that_kubernetes_brings_are_gathered(self, root: Client, aggregation: Bearer) -> None:
        """`edit` impersonates service accounts, as Kubernetes has it: its controller may write that, and no more."""
        path = f"{RBAC}/clusterroles/edit"
        before = root.request("GET", path).body
        assert "aggregationRule" in before
        rules = root.request("GET", f"{RBAC}/clusterroles/system:aggregate-to-edit").body["rules"]
        assert any(one["verbs"] == ["impersonate"] for one in rules)
        reply = aggregation.request("PATCH", path, {"rules": rules}, MERGE_PATCH)
        assert reply.status == 200, reply.message
        more = {"rules": [*rules, IMPERSONATING[0]]}
        refused(aggregation.request("PATCH", path, more, MERGE_PATCH), RIGHTS)

    def test_are_gathered_by_the_real_controller(self, server: Server, root: Client) -> None:
        """kube-controller-manager as the fleet runs it, but for its other controllers."""
        place = binaries()
        assert place is not None
        command = [
            str(place / "kube-controller-manager"),
            f"--kubeconfig={server.kubeconfig(CONTROLLER_MANAGER)}",
            "--controllers=clusterrole-aggregation-controller",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--secure-port=0",
        ]
        label = {"labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}
        more = role("ClusterRole", "queues", rule("kueue.x-k8s.io", "localqueues", "*"), **label)
        whole = single(root.request("GET", f"{RBAC}/clusterroles/system:aggregate-to-edit").body["rules"])

        def gathered() -> bool:
            rules = root.request("GET", f"{RBAC}/clusterroles/edit").body["rules"] or []
            return single(rules) >= {*whole, ("kueue.x-k8s.io", "localqueues", "*")}

        assert root.request("POST", f"{RBAC}/clusterroles", more).status == 201
        controller = Part(command, server.directory / "controller-manager.log")
        with ended(controller):
            controller.start()
            until("edit to hold what was labelled", gathered, 60)

    def test_of_the_api_servers_own_roles_come_back(self, server: Server, root: Client) -> None:
        """At its start it writes the roles that it brings, with all policies in force."""
        path = f"{RBAC}/clusterroles/system:aggregate-to-edit"
        rules = single(root.request("GET", path).body["rules"])
        assert root.request("PATCH", path, {"rules": []}, MERGE_PATCH).status == 200
        server.apiserver.kill()
        server.apiserver.start()
        server.wait_ready()
        until("the role to be whole", lambda: single(root.request("GET", path).body["rules"] or []) == rules, 60)

    def test_are_of_no_use_to_a_forger(self, admin: Client, server: Server) -> None:
        for headers in ({"Impersonate-User": ADMITTER_USER}, {"Impersonate-User": "x", "Impersonate-Uid": "1"}):
            refused(admin.request("GET", NODES, headers=headers), "cannot impersonate")
        kubelet_proxy = admin.request("GET", "/api/v1/nodes/gpu-1/proxy/pods")
        refused(kubelet_proxy, "cannot get")
        signed = {"signerName": "kubernetes.io/kube-apiserver-client", "request": base64.b64encode(b"x").decode()}
        made = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "me"}}
        reply = admin.request(
            "POST",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            {**made, "spec": {**signed, "usages": ["client auth"]}},
        )
        refused(reply, "cannot create")


def api_service(name: str, service: str = "mine") -> dict[str, Any]:
    version, _, group = name.partition(".")
    spec: dict[str, Any] = {"group": group, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 10}
    spec |= {"service": {"name": service, "namespace": "default"}, "insecureSkipTLSVerify": True}
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": name},
        "spec": spec,
    }


class TestApiGroups:
    @pytest.mark.parametrize("name", ["v1.", "v1.coordination.k8s.io", "v1.apps", "v1.rbac.authorization.k8s.io"])
    def test_of_kubernetes_stay(self, admin: Client, strong: Client, name: str) -> None:
        for client in (admin, strong):
            change = {"spec": api_service(name)["spec"]}
            refused(client.request("PATCH", f"{SERVICES}/{name}", change, MERGE_PATCH), GROUPS)
            refused(client.request("DELETE", f"{SERVICES}/{name}"), GROUPS)

    @pytest.mark.parametrize("name", ["v1beta9.coordination.k8s.io", "v2.apps", "v9.flowcontrol.apiserver.k8s.io"])
    def test_of_kubernetes_get_no_other_version(self, strong: Client, name: str) -> None:
        refused(strong.request("POST", SERVICES, api_service(name)), GROUPS)

    @pytest.mark.parametrize("name", ["v1beta1.metrics.k8s.io", "v1beta2.visibility.kueue.x-k8s.io", "v1.example.com"])
    def test_of_others_are_free(self, admin: Client, name: str) -> None:
        assert admin.request("POST", SERVICES, api_service(name)).status == 201
        assert admin.request("DELETE", f"{SERVICES}/{name}").status == 200


EXCLUDED = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", SYSTEM_NAMESPACE]}
    ]
}


class TestWebhooks:
    @pytest.mark.parametrize("kind", HOOK_KINDS)
    @pytest.mark.parametrize(
        "matched",
        [
            matching("core", "nodes"),
            matching("core", "pods nodes/status", "Cluster"),
            matching("core", "*/*"),
            matching("*", "*"),
            matching("*", "things"),
            matching("muster.dev", "nodeadmissions"),
            matching("certificates.k8s.io", "certificatesigningrequests/approval"),
            matching("coordination.k8s.io", "leases", "Namespaced"),
            matching("core", "configmaps", "Namespaced"),
            matching("*", "*", "Namespaced"),
        ],
    )
    def test_of_the_fleets_objects_are_break_glass_alone(
        self, admin: Client, root: Client, kind: str, matched: dict[str, Any]
    ) -> None:
        path, made = hook(kind, matched)
        refused(admin.request("POST", path, made), WEBHOOKS)
        reply = root.request("POST", f"{path}?dryRun=All", made)
        assert reply.status == 201, reply.message

    @pytest.mark.parametrize("kind", HOOK_KINDS)
    def test_do_not_grow_into_them(self, admin: Client, kind: str) -> None:
        path, made = hook(kind, matching("core", "pods"))
        assert admin.request("POST", path, made).status == 201
        one = f"{path}/{made['metadata']['name']}"
        try:
            change = hook(kind, matching("core", "pods nodes"))[1]
            refused(
                admin.request("PATCH", one, {k: change[k] for k in ("spec", "webhooks") if k in change}, MERGE_PATCH),
                WEBHOOKS,
            )
        finally:
            assert admin.request("DELETE", one).status == 200

    @pytest.mark.parametrize("kind", HOOK_KINDS)
    @pytest.mark.parametrize(
        ("matched", "more"),
        [
            (matching("core", "pods pods/eviction"), {}),
            (matching("batch kueue.x-k8s.io", "*"), {}),
            (matching("*", "*", "Namespaced"), {"namespaceSelector": EXCLUDED}),
            (
                matching("core", "*", "Namespaced"),
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "a"}}},
            ),
        ],
    )
    def test_of_others_are_free(self, admin: Client, kind: str, matched: dict[str, Any], more: dict[str, Any]) -> None:
        path, made = hook(kind, matched, **more)
        reply = admin.request("POST", f"{path}?dryRun=All", made)
        assert reply.status == 201, reply.message
