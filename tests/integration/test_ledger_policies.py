"""Attacks on the ledger (NodeAdmission), the Lease and the pause, against a real API server, by every identity.

Only here: each rule of the ledger, by each identity and each way to write.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.api.crd import crd
from gpu_burnin.api.names import LEASE, PAUSE, SYSTEM_NAMESPACE, Names
from gpu_burnin.api.record import Ask, Identity, NodeAdmission, Spec, document
from tests.integration.gate import NODES, admitted_node, attacker, held_node, kubelet, merge, numbers, refused
from tests.integration.kube import APPLY, JSON_PATCH, MERGE_PATCH, Client, Server
from tests.integration.ledger import KEY, LEDGER, NAMES, change, entry

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"
ATTACKERS = ["root", "admin", "kubelet"]
ADMITTED = {"state": "ready", "highestSequence": 1}
TIME = "2026-11-22T12:00:00Z"


def ask(who: str) -> dict[str, str]:
    return {"who": who, "why": "loud fan", "since": TIME}


class TestStatus:
    def test_is_the_admitters(self, provisioner: Client, admitter: Client) -> None:
        assert change(admitter, entry(provisioner), {"status": ADMITTED}, "/status").status == 200

    @pytest.mark.parametrize("who", ATTACKERS)
    def test_cannot_be_forged(self, ledger: Server, provisioner: Client, who: str) -> None:
        name = entry(provisioner)
        word = "forbidden" if who != "root" else "only the admitter writes the status"
        refused(change(attacker(ledger, who, name), name, {"status": ADMITTED}, "/status"), word)
        refused(change(provisioner, name, {"status": ADMITTED}, "/status"), "forbidden")

    def test_is_not_written_beside_the_spec(self, provisioner: Client, admin: Client) -> None:
        name = entry(provisioner)
        assert change(admin, name, {"status": ADMITTED}).status == 200
        assert "status" not in admin.request("GET", f"{LEDGER}/{name}").body

    @pytest.mark.parametrize("content_type", [MERGE_PATCH, JSON_PATCH, APPLY])
    def test_brings_in_nothing_else(self, provisioner: Client, admitter: Client, content_type: str) -> None:
        """The policy passes over the admitter's updates of the status, since only the status is taken from them."""
        name = entry(provisioner)
        before = admitter.request("GET", f"{LEDGER}/{name}").body
        spec = {"identity": {"hostKey": "other"}, "hold": ask("admin")}
        metadata = {"labels": {"team": "red"}, "finalizers": ["a.example/b"]}
        forged = {"metadata": metadata, "spec": spec}
        path = f"{LEDGER}/{name}/status"
        body: Any = {**forged, "status": ADMITTED}
        if content_type == JSON_PATCH:
            parts = {"/spec": spec, "/status": ADMITTED, "/metadata/labels": {"team": "red"}}
            body = [{"op": "add", "path": place, "value": value} for place, value in parts.items()]
        elif content_type == APPLY:
            path = f"{path}?fieldManager=x&force=true"
            body = {**body, "apiVersion": NAMES.api_version, "kind": before["kind"]}
            body["metadata"] = {**metadata, "name": name}
        reply = admitter.request("PATCH", path, body, content_type)
        assert reply.status == 200, reply.message
        after = admitter.request("GET", f"{LEDGER}/{name}").body
        assert after["status"] == ADMITTED and after["spec"] == before["spec"]
        assert not {"labels", "finalizers"} & after["metadata"].keys()

    @pytest.mark.parametrize("subresource", ["", "/status"])
    def test_the_admitter_makes_and_removes_no_entry(
        self, provisioner: Client, admitter: Client, subresource: str
    ) -> None:
        made = document(NodeAdmission(f"led-{next(numbers)}"), NAMES)
        path = f"{LEDGER}/{made['metadata']['name']}{subresource}"
        assert admitter.request("PUT", path, {**made, "status": ADMITTED}).status in (403, 404)
        assert admitter.request("PATCH", f"{path}?fieldManager=x&force=true", made, APPLY).status in (403, 404)
        assert admitter.request("DELETE", f"{LEDGER}/{entry(provisioner)}{subresource}").status in (403, 405)

    def test_a_higher_sequence_than_json_holds_is_refused(self, provisioner: Client, admitter: Client) -> None:
        reply = change(admitter, entry(provisioner), {"status": {**ADMITTED, "highestSequence": 10**300}}, "/status")
        assert reply.status in (400, 422), reply.message


class TestIdentity:
    @pytest.mark.parametrize("who", ATTACKERS)
    @pytest.mark.parametrize(
        "part",
        [
            {"identity": {"hostKey": "ssh-ed25519 other"}},
            {"identity": {"allowSimulated": True}},
            {"identity": {"addresses": ["198.18.0.9"]}},
            {"identity": None},
            {"hardware": {"gpus": 0}},
            {"hardware": {"model": "b200-sxm"}},
            {"place": {"rack": "r9"}},
            {"place": None},
            {"fabric": [{"rail": 0, "address": "198.51.100.9"}]},
            {"evidence": {"level": "quick"}},
            {"evidence": {"maxAgeSeconds": 10**9}},
            {"restored": {"who": "admin", "why": "snapshot", "since": TIME}},
            {"swing": {"who": "admin", "why": "waves", "since": TIME, "until": TIME}},
        ],
    )
    def test_is_the_provisioners(
        self, ledger: Server, provisioner: Client, who: str, part: dict[str, dict[str, Any] | None]
    ) -> None:
        name = entry(provisioner)
        word = "forbidden" if who == "kubelet" else "only the provisioner changes identity"
        refused(change(attacker(ledger, who, name), name, {"spec": part}), word)
        assert change(provisioner, name, {"spec": part}).status == 200

    @pytest.mark.parametrize("who", ATTACKERS)
    def test_of_a_restore_is_not_lifted(self, ledger: Server, provisioner: Client, who: str) -> None:
        name = entry(provisioner, Spec(Identity(KEY), restored=Ask("muster:provisioner", "snapshot", TIME)))
        word = "forbidden" if who == "kubelet" else "only the provisioner changes identity"
        for lifted in (None, {"since": "2026-11-01T00:00:00Z"}):
            refused(change(attacker(ledger, who, name), name, {"spec": {"restored": lifted}}), word)

    @pytest.mark.parametrize("content_type", ["PUT", JSON_PATCH, APPLY])
    def test_by_every_way_to_write(self, provisioner: Client, root: Client, content_type: str) -> None:
        name = entry(provisioner)
        path = f"{LEDGER}/{name}"
        if content_type == "PUT":
            whole = root.request("GET", path).body
            whole["spec"]["identity"]["hostKey"] = "other"
            reply = root.request("PUT", path, whole)
        elif content_type == JSON_PATCH:
            reply = root.request("PATCH", path, [{"op": "remove", "path": "/spec"}], JSON_PATCH)
        else:
            whole = document(NodeAdmission(name, Spec(Identity("other"))), NAMES)
            reply = root.request("PATCH", f"{path}?fieldManager=x&force=true", whole, APPLY)
        refused(reply, "only the provisioner changes identity")

    @pytest.mark.parametrize("who", ATTACKERS)
    def test_an_entry_made_again_with_another_key(self, ledger: Server, provisioner: Client, who: str) -> None:
        name = entry(provisioner)
        client = attacker(ledger, who, name)
        word = "forbidden" if who != "root" else "only the provisioner creates and deletes"
        refused(client.request("DELETE", f"{LEDGER}/{name}"), word)
        refused(client.request("DELETE", LEDGER), word)
        made = document(NodeAdmission(f"led-{next(numbers)}", Spec(Identity("other"))), NAMES)
        refused(client.request("POST", LEDGER, made), word)
        assert provisioner.request("DELETE", f"{LEDGER}/{name}").status == 200


class TestAsks:
    @pytest.mark.parametrize("kind", ["hold", "quarantine", "retest", "repair"])
    def test_carry_the_name_of_who_asks(self, provisioner: Client, admin: Client, root: Client, kind: str) -> None:
        name = entry(provisioner)
        assert change(admin, name, {"spec": {kind: ask("admin")}}).status == 200
        word = f"{kind} is asked for by a person, in the own name"
        refused(change(root, name, {"spec": {kind: ask("admin") | {"why": "other"}}}), word)
        refused(change(admin, name, {"spec": {kind: ask("somebody")}}), word)
        assert change(admin, name, {"metadata": {"labels": {"team": "red"}}}).status == 200
        assert change(root, name, {"spec": {kind: None}}).status == 200

    @pytest.mark.parametrize("kind", ["hold", "quarantine", "retest", "repair"])
    def test_are_no_affair_of_a_node(self, ledger: Server, provisioner: Client, admin: Client, kind: str) -> None:
        name = entry(provisioner)
        assert change(admin, name, {"spec": {kind: ask("admin")}}).status == 200
        own = kubelet(ledger, name)
        refused(change(own, name, {"spec": {kind: None}}), "forbidden")
        refused(own.request("GET", f"{LEDGER}/{name}"), "forbidden")
        # RBAC refuses a node first. Where somebody has given nodes more, the policy still does.
        strong = ledger.client(f"system:node:{name}", ["system:masters"])
        refused(change(strong, name, {"spec": {kind: None}}), "not taken back by a node")
        refused(change(strong, name, {"spec": {kind: ask(f"system:node:{name}")}}), "not taken back by a node")

    def test_survive_a_new_identity(self, provisioner: Client, admin: Client) -> None:
        name = entry(provisioner, Spec(Identity(KEY)))
        assert change(admin, name, {"spec": {"hold": ask("admin")}}).status == 200
        assert change(provisioner, name, {"spec": {"identity": {"hostKey": "new"}}}).status == 200
        assert provisioner.request("GET", f"{LEDGER}/{name}").body["spec"]["hold"]["who"] == "admin"

    def test_of_the_provisioner_carry_its_name(self, provisioner: Client) -> None:
        forged = Spec(Identity(KEY), hold=Ask("admin", "why", TIME))
        made = document(NodeAdmission(f"led-{next(numbers)}", forged), NAMES)
        refused(provisioner.request("POST", LEDGER, made), "in the own name")


class TestDefinition:
    @pytest.mark.parametrize("who", ["root", "admin", "admitter"])
    def test_is_the_provisioners(self, ledger: Server, admitter: Client, who: str) -> None:
        client = admitter if who == "admitter" else attacker(ledger, who, "x")
        word = "forbidden" if who == "admitter" else "only the provisioner changes what muster.dev is"
        path = f"{CRDS}/{NAMES.crd}"
        refused(client.request("DELETE", path), word)
        refused(client.request("PATCH", path, {"spec": {"names": {"categories": ["x"]}}}, MERGE_PATCH), word)
        refused(
            client.request("PATCH", f"{path}/status", {"status": {"storedVersions": ["v1", "v2"]}}, MERGE_PATCH), word
        )
        refused(client.request("DELETE", CRDS), word)
        another = crd(NAMES)
        another["metadata"]["name"] = f"others.{NAMES.domain}"
        another["spec"]["names"] = {"kind": "Other", "listKind": "OtherList", "plural": "others", "singular": "other"}
        refused(client.request("POST", CRDS, another), word)

    def test_others_are_free(self, ledger: Server, admin: Client) -> None:
        made = crd(Names("team.example"))
        made["spec"]["names"] = {**made["spec"]["names"], "shortNames": []}
        assert admin.request("POST", CRDS, made).status == 201
        assert admin.request("DELETE", f"{CRDS}/{made['metadata']['name']}").status == 200

    @pytest.mark.parametrize("who", ["root", "admin"])
    def test_no_other_server_answers_for_it(self, ledger: Server, provisioner: Client, who: str) -> None:
        entry(provisioner)
        client = attacker(ledger, who, "x")
        path = f"/apis/apiregistration.k8s.io/v1/apiservices/v1.{NAMES.domain}"
        service = {"spec": {"service": {"namespace": "default", "name": "mine", "port": 443}}}
        word = "only the provisioner changes what muster.dev is"
        refused(client.request("PATCH", path, service, MERGE_PATCH), word)
        refused(client.request("DELETE", path), word)


class TestNodes:
    @pytest.mark.parametrize("key", [NAMES.request, NAMES.leave, NAMES.admitted])
    def test_what_the_admitter_asks_is_its_own(self, server: Server, admitter: Client, root: Client, key: str) -> None:
        name = admitted_node(server, admitter)
        assert merge(admitter, name, {"metadata": {"annotations": {key: "asked"}}}).status == 200
        for client in (root, kubelet(server, name)):
            refused(merge(client, name, {"metadata": {"annotations": {key: "other"}}}))
            refused(merge(client, name, {"metadata": {"annotations": {key: None}}}))

    def test_a_note_is_the_nodes_own(self, server: Server, root: Client, admin: Client) -> None:
        name = held_node(server)
        mine = {"metadata": {"annotations": {NAMES.agent: "note"}}}
        assert merge(kubelet(server, name), name, mine).status == 200
        for client in (root, admin):
            refused(merge(client, name, {"metadata": {"annotations": {NAMES.agent: "other"}}}))
        # A node's own rights are for its own Node: it cannot speak for, ask, or revoke another.
        other = kubelet(server, held_node(server))
        for key in (NAMES.agent, NAMES.evidence, NAMES.request):
            refused(merge(other, name, {"metadata": {"annotations": {key: "forged"}}}), "forbidden")
        refused(other.request("GET", f"{NODES}/{name}"), "forbidden")

    @pytest.mark.parametrize("kind", ["testing", "maintenance"])
    def test_its_further_taints_are_the_admitters(
        self, server: Server, admitter: Client, root: Client, kind: str
    ) -> None:
        name = admitted_node(server, admitter)
        taint = {"key": f"{NAMES.domain}/{kind}", "effect": "NoSchedule"}
        refused(merge(root, name, {"spec": {"taints": [taint]}}))
        assert merge(admitter, name, {"spec": {"taints": [taint]}}).status == 200
        refused(merge(root, name, {"spec": {"taints": []}}))


class TestLeaderAndPause:
    def lease(self, holder: str) -> dict[str, Any]:
        return {"metadata": {"name": LEASE}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}}

    def test_the_lease_is_the_admitters(self, server: Server, admitter: Client, root: Client, admin: Client) -> None:
        refused(root.request("POST", LEASES, self.lease("me")), "only the admitter writes its Lease")
        assert admitter.request("POST", LEASES, self.lease("api-1")).status == 201
        for client in (root, admin):
            body = {"spec": {"holderIdentity": "me"}}
            refused(client.request("PATCH", f"{LEASES}/{LEASE}", body, MERGE_PATCH), "only the admitter writes")
            refused(client.request("DELETE", f"{LEASES}/{LEASE}"), "only the admitter writes")
        whole = admitter.request("GET", f"{LEASES}/{LEASE}").body
        assert admitter.request("PUT", f"{LEASES}/{LEASE}", whole).status == 200
        refused(kubelet(server, "led-x").request("PUT", f"{LEASES}/{LEASE}", whole), "forbidden")

    def test_a_pause_is_a_persons(self, server: Server, admitter: Client, admin: Client) -> None:
        pause = {"metadata": {"name": PAUSE}, "data": {"who": "admin", "why": "power works", "until": ""}}
        refused(kubelet(server, "led-x").request("POST", CONFIG_MAPS, pause), "forbidden")
        forged = {**pause, "data": {**pause["data"], "who": "somebody"}}
        refused(admin.request("POST", CONFIG_MAPS, forged), "a pause carries the name of its author")
        assert admin.request("POST", CONFIG_MAPS, pause).status == 201
        assert admitter.request("GET", f"{CONFIG_MAPS}/{PAUSE}").status == 200
        assert admitter.request("GET", f"{CONFIG_MAPS}?fieldSelector=metadata.name%3D{PAUSE}").status == 200
        refused(admitter.request("DELETE", f"{CONFIG_MAPS}/{PAUSE}"), "cannot delete")
        assert admin.request("DELETE", f"{CONFIG_MAPS}/{PAUSE}").status == 200

    def test_others_objects_there_are_free(self, admin: Client) -> None:
        other = {"metadata": {"name": "notes"}, "data": {"a": "b"}}
        assert admin.request("POST", CONFIG_MAPS, other).status == 201
