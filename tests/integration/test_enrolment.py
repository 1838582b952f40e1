"""Attacks on the enrolment of machines, against a real API server: stolen, used, foreign, ended and forged tokens.

Only here: the API server's answers to whoever holds a bootstrap token, and the policies on which ones there may be.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.approve import InventoryNode, judge_csr
from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.service.cache import Records
from gpu_burnin.admission.service.certificates import Approver, Requests
from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.api.enrolment import SIGNED_FOR, EnrolmentError, Handed, parse_enrolment, request_name
from gpu_burnin.api.names import ADMITTER_USER
from gpu_burnin.fleet.image.enrolments import approve, read, refuse
from gpu_burnin.fleet.image.tokens import SECRETS, secret_of
from gpu_burnin.node.enrol.api import TokenApi
from gpu_burnin.node.enrol.course import enrol
from gpu_burnin.node.enrol.keys import pair_of
from gpu_burnin.node.signing import sign
from gpu_burnin.settings.config import PublishConfig
from gpu_burnin.system.known_hosts import load
from tests.integration.enrolling import (
    ADMISSIONS,
    CSRS,
    ENROLMENTS,
    NAMES,
    Bearer,
    Controller,
    Machine,
    decided,
    enrolments_known,
)
from tests.integration.gate import NODES, a_node, attacker, kubelet, numbers, refused
from tests.integration.kube import JSON_PATCH, MERGE_PATCH, Client, Server, until

ONLY = "and for nothing else"
USED = "was used already, or taken back"
OTHERS = "only the provisioner writes a NodeEnrolment, and once the machine that has its token"


@pytest.fixture(scope="module")
def enrolling(ledger: Server) -> Iterator[Server]:
    with enrolments_known(ledger) as running:
        yield running


@pytest.fixture
def controller(enrolling: Server, tmp_path: Path) -> Controller:
    return Controller(enrolling, tmp_path / "state")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.new(tmp_path / "machine")


@pytest.fixture
def thief(tmp_path: Path) -> Machine:
    return Machine.new(tmp_path / "thief")


def let_in(controller: Controller, node: str) -> None:
    """Approve a machine, whoever it is."""
    known = read(controller.api, NAMES, controller.state.known_hosts)
    approve(controller.api, NAMES, node, known, controller.state, decided(), lambda *_: "")


def refusals(controller: Controller, by: Bearer) -> tuple[str, ...]:
    """What the admitter has against the certificate request of who has this token."""
    node, admitter = by.handed.node, controller.server.client(ADMITTER_USER)
    csr = admitter.request("GET", f"{CSRS}/{request_name(by.handed.token)}").body
    decision = parse_enrolment(admitter.request("GET", f"{ENROLMENTS}/{node}").body).spec.decision
    inventory = {node: InventoryNode.of(node, ["198.18.0.9"])}
    return judge_csr(csr, inventory, lambda *_: decision.request_sha256 if decision is not None else "").refusals


def secret(handed: Handed, ends: datetime, **data: str | None) -> dict[str, Any]:
    """A token's Secret with changes; None takes a key away."""
    made: dict[str, Any] = dict(secret_of(handed, ends))
    said = {**made["data"], **{key: base64.b64encode((value or "").encode()).decode() for key, value in data.items()}}
    made["data"] = {key: value for key, value in said.items() if data.get(key, "") is not None}
    return made


class TestAMachine:
    def test_enrols_is_approved_and_gets_what_it_asked_for(
        self, controller: Controller, machine: Machine, admitter: Client
    ) -> None:
        node = controller.node(f"gpu-{next(numbers)}.rack-1.example.com")
        by = controller.token(node)
        reply = machine.enrols(by)
        assert reply.status == 200, reply.message
        assert machine.asks(by).status == 201
        assert refusals(controller, by)
        let_in(controller, node)
        identity = admitter.request("GET", f"{ADMISSIONS}/{node}").body["spec"]["identity"]
        assert (identity["hostKey"], identity["machineID"]) == (machine.host_key, machine.machine_id)
        assert load(controller.state.known_hosts).evidence_key("198.18.0.9") == machine.host_key
        found = parse_enrolment(by.request("GET", f"{ENROLMENTS}/{node}").body).spec.decision
        assert found is not None and (found.address, found.pod_range) == ("198.18.0.9", "198.19.9.0/24")
        assert refusals(controller, by) == ()
        # A second time changes nothing.
        let_in(controller, node)
        assert len(load(controller.state.known_hosts).entries) == 1

    def test_has_its_request_approved_by_the_admitter(
        self, enrolling: Server, controller: Controller, machine: Machine, admitter: Client
    ) -> None:
        """As itself, with its own rights."""
        node = controller.node()
        by = controller.token(node)
        assert machine.enrols(by).status == 200
        let_in(controller, node)
        assert machine.asks(by).status == 201
        path = f"{CSRS}/{request_name(by.handed.token)}"
        requests = Requests()
        requests.put(admitter.request("GET", path).body)
        records = Records(NAMES)
        records.put(admitter.request("GET", f"{ADMISSIONS}/{node}").body)
        api = KubeApi(enrolling.kubeconfig(ADMITTER_USER))
        Approver(api, NAMES, requests, records, {}, Journal(), Metrics()).reconcile(request_name(by.handed.token))
        assert by.request("GET", path).body["status"]["conditions"][0]["type"] == "Approved"

    def test_goes_all_the_way_by_the_program_of_the_image(
        self, enrolling: Server, root: Client, controller: Controller, machine: Machine, tmp_path: Path
    ) -> None:
        """What people and the signer do happens while it waits."""
        by = controller.token(controller.node())
        handed, pair = by.handed, pair_of(tmp_path / "keys", by.handed.node)
        publish = PublishConfig(f"https://127.0.0.1:{enrolling.port}", enrolling.authority.ca)
        certificate = enrolling.authority.issue("anybody")[0].read_bytes()

        def issue() -> None:
            path = f"{CSRS}/{request_name(handed.token)}"
            csr = root.request("GET", path).body
            assert base64.b64decode(csr["spec"]["request"]) == pair.request
            approved = {"type": "Approved", "status": "True", "reason": "x", "message": "x"}
            csr["status"] = {"conditions": [approved]}
            csr = root.request("PUT", f"{path}/approval", csr).body
            csr["status"]["certificate"] = base64.b64encode(certificate).decode()
            assert root.request("PUT", f"{path}/status", csr).status == 200

        deeds = iter([lambda: let_in(controller, handed.node), issue])
        told: list[str] = []
        found = enrol(
            TokenApi(publish, handed),
            handed,
            machine.claim(handed, request_sha256=pair.request_sha256),
            lambda data: sign(data, machine.directory / "host_key", SIGNED_FOR),
            pair.request,
            told.append,
            sleep=lambda _: next(deeds)(),
        )
        assert found.certificate == certificate and found.decision.address == "198.18.0.9"
        assert [line.partition(": ")[2] for line in told[1:]] == [
            f"waits for its approval (muster image approve {handed.node})",
            "was approved by alice, and waits for its certificate",
        ]

    def test_that_comes_second_says_whose_key_was_first(
        self, enrolling: Server, controller: Controller, machine: Machine, thief: Machine, tmp_path: Path
    ) -> None:
        by = controller.token(controller.node())
        assert thief.enrols(by).status == 200
        publish = PublishConfig(f"https://127.0.0.1:{enrolling.port}", enrolling.authority.ca)
        claim = machine.claim(by.handed)
        first = re.escape(thief.claim(by.handed).fingerprint)
        with pytest.raises(
            EnrolmentError, match=f"was used before it came, by one with the host key {first}"
        ) as caught:
            enrol(
                TokenApi(publish, by.handed),
                by.handed,
                claim,
                lambda data: sign(data, machine.directory / "host_key", SIGNED_FOR),
                machine.request(by.handed.node),
                lambda _: None,
            )
        assert claim.fingerprint in str(caught.value) and caught.value.exit_code == 1

    def test_is_not_approved_with_another_key_than_it_has_signed(
        self, controller: Controller, machine: Machine, thief: Machine
    ) -> None:
        """Who steals the token after the machine has used it asks for the certificate before it does."""
        by = controller.token(controller.node())
        assert machine.enrols(by).status == 200
        let_in(controller, by.handed.node)
        assert thief.asks(by).status == 201
        [why] = refusals(controller, by)
        assert why == "no enrolment of its node with this token and request was approved (muster image enrolments)"


class TestAToken:
    def test_is_used_once(self, controller: Controller, machine: Machine, thief: Machine) -> None:
        by = controller.token(controller.node())
        assert machine.enrols(by).status == 200
        refused(thief.enrols(by), USED)
        refused(machine.enrols(by), USED)

    def test_is_used_once_by_those_who_come_at_the_same_time(
        self, controller: Controller, machine: Machine, thief: Machine
    ) -> None:
        """A controller that deletes tokens when it sees them used would be too late for this."""
        by = controller.token(controller.node())
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda one: one.enrols(by).status, [machine, thief] * 4))
        assert sorted(replies) == [200] + [403] * 7

    def test_that_was_stolen_and_used_first_shows_the_thief(
        self, controller: Controller, machine: Machine, thief: Machine
    ) -> None:
        """The right machine is refused, reads whose key was first, and the person who compares refuses it."""
        node = controller.node()
        by = controller.token(node)
        assert thief.enrols(by).status == 200
        refused(machine.enrols(by), USED)
        assert thief.host_key in parse_enrolment(by.request("GET", f"{ENROLMENTS}/{node}").body).spec.claim
        known = read(controller.api, NAMES, controller.state.known_hosts)
        with pytest.raises(EnrolmentError, match="not the one on the console"):
            approve(
                controller.api,
                NAMES,
                node,
                known,
                controller.state,
                decided(),
                lambda _, claim: "" if claim.host_key == machine.host_key else "not the one on the console",
            )
        assert not controller.state.known_hosts.exists()
        refuse(controller.api, NAMES, node, decided("a thief", approved=False))
        # The machine reads why; nobody gets in by that token, nor by the certificate request that it still makes.
        assert by.request("GET", f"{ENROLMENTS}/{node}").body["spec"]["decision"]["why"] == "a thief"
        refused(machine.enrols(by), USED)
        assert thief.asks(by).status == 201
        assert refusals(controller, by) == (
            "no enrolment of its node with this token and request was approved (muster image enrolments)",
        )
        with pytest.raises(EnrolmentError, match="it was refused"):
            let_in(controller, node)
        again = controller.token(node, again=True)
        assert machine.enrols(again).status == 200
        let_in(controller, node)

    def test_is_for_one_node(self, controller: Controller, machine: Machine) -> None:
        """The other one may have a token of its own, or none."""
        by = controller.token(controller.node())
        other = controller.token(controller.node()).handed.node
        refused(machine.enrols(Bearer(by.client, replace(by.handed, node=other))), OTHERS)
        bare = controller.node()
        assert machine.enrols(Bearer(by.client, replace(by.handed, node=bare))).status == 404

    def test_asks_for_one_certificate(self, controller: Controller, machine: Machine) -> None:
        by = controller.token(controller.node())
        named = {"metadata": {"name": "enrol-abcdef"}}
        refused(machine.asks(by, named), ONLY)
        refused(machine.asks(by, {"metadata": {"generateName": "enrol-"}}), ONLY)
        assert machine.asks(by).status == 201
        assert machine.asks(by).status == 409

    def test_makes_no_enrolment(self, controller: Controller, machine: Machine) -> None:
        by = controller.token(controller.node())
        body = {"apiVersion": "muster.dev/v1", "kind": "NodeEnrolment", "metadata": {"name": f"x-{next(numbers)}"}}
        made = {**body, "spec": {"token": by.handed.token, "ends": "x"}}
        refused(by.request("POST", ENROLMENTS, made), "forbidden")

    def test_decides_nothing(self, controller: Controller, machine: Machine) -> None:
        node = controller.node()
        by = controller.token(node)
        claim = machine.claim(by.handed)
        said = {"claim": claim.canonical().decode(), "signature": "x"}
        own = {"approved": True, "who": "alice", "why": "x", "at": "x", "requestSHA256": claim.request_sha256}
        path = f"{ENROLMENTS}/{node}"
        for spec in ({**said, "decision": own}, {"decision": own}):
            refused(by.request("PATCH", path, {"spec": spec}, MERGE_PATCH), "decides nothing")
        refused(by.request("PATCH", path, {"spec": {**said, "token": "abcdef"}}, MERGE_PATCH), "decides nothing")
        assert machine.enrols(by).status == 200
        refused(by.request("PATCH", path, {"spec": {"decision": own}}, MERGE_PATCH), USED)
        refused(by.request("DELETE", path), "forbidden")

    def test_ends(self, controller: Controller, machine: Machine) -> None:
        by = controller.token(controller.node(), 3.0)
        # It may end before the first look, and never after its time.
        until("the end of the token", lambda: by.request("GET", f"{ENROLMENTS}/nobody").status == 401, 30)
        assert machine.enrols(by).status == 401

    def test_that_was_replaced_is_good_for_nothing(self, controller: Controller, machine: Machine) -> None:
        """An API server takes one that is gone for some seconds more, where it has it in its cache."""
        node = controller.node()
        old = controller.token(node)
        assert old.request("GET", f"{ENROLMENTS}/{node}").status == 200
        new = controller.token(node)
        reply = machine.enrols(old)
        assert reply.status == 401 or (reply.status == 403 and OTHERS in reply.message), reply.message
        assert machine.enrols(new).status == 200

    def test_that_was_refused_before_its_machine_came_is_good_for_nothing(
        self, controller: Controller, machine: Machine
    ) -> None:
        node = controller.node()
        by = controller.token(node)
        assert by.request("GET", f"{ENROLMENTS}/{node}").status == 200
        refuse(controller.api, NAMES, node, decided("lost", approved=False))
        reply = machine.enrols(by)
        assert reply.status == 401 or (reply.status == 403 and USED in reply.message), reply.message

    def test_gives_no_right_that_everybody_was_given(self, root: Client, controller: Controller) -> None:
        """As where somebody bound a role to all who are authenticated."""
        rbac = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        group = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        bound = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "subjects": group}
        assert root.request("POST", rbac, {**bound, "metadata": {"name": "all"}, "roleRef": role}).status == 201
        try:
            by = controller.token(node := controller.node())
            made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"made-{next(numbers)}"}}
            space = "/api/v1/namespaces/default/configmaps"
            until("the binding's being in force", lambda: by.request("GET", space).status == 200, 30)
            refused(by.request("POST", space, made), ONLY)
            refused(by.request("POST", NODES, a_node(node)), ONLY)
            refused(by.request("DELETE", f"{ADMISSIONS}/{node}"), ONLY)
            refused(by.request("DELETE", f"{ENROLMENTS}/{node}"), ONLY)
        finally:
            assert root.request("DELETE", f"{rbac}/all").status == 200


def test_kube_proxy_of_the_image_reads_with_the_certificate_of_its_node(enrolling: Server) -> None:
    client = kubelet(enrolling, "gpu-1")
    for path in ("/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"):
        assert client.request("GET", path).status == 200
        refused(client.request("DELETE", f"{path.replace('/services', '/namespaces/default/services/kubernetes')}"), "")


class TestTokensOfOthers:
    """Which bootstrap tokens there may be at all."""

    HOUR = timedelta(hours=1)

    def handed(self) -> Handed:
        return Handed("gpu-1", f"t{next(numbers):05}"[:6], "0123456789abcdef")

    @pytest.mark.parametrize("who", ["root", "admin"])
    def test_are_made_by_nobody(self, enrolling: Server, who: str) -> None:
        """The everyday admin may write Secrets of kube-system, and break-glass everything."""
        made = secret(self.handed(), datetime.now(UTC) + self.HOUR)
        reply = attacker(enrolling, who, "x").request("POST", SECRETS, made)
        refused(reply, "only the provisioner makes bootstrap tokens")

    @pytest.mark.parametrize(
        "changes",
        [
            {"auth-extra-groups": "system:bootstrappers:muster"},
            {"auth-extra-groups": None},
            {"auth-extra-groups": "system:bootstrappers:muster-enrol,system:bootstrappers:muster"},
            {"usage-bootstrap-signing": "true"},
            {"expiration": None},
            {"expiration": ""},
        ],
    )
    def test_of_another_kind_are_made_by_nobody(self, provisioner: Client, changes: dict[str, str | None]) -> None:
        good, ends = self.handed(), datetime.now(UTC) + self.HOUR
        assert provisioner.request("POST", f"{SECRETS}?dryRun=All", secret(good, ends)).status == 201
        reply = provisioner.request("POST", SECRETS, secret(good, ends, **changes))
        refused(reply, "has an end, enrols one machine, and is good for nothing else")

    @pytest.mark.parametrize("who", ["root", "admin"])
    def test_are_not_changed(self, enrolling: Server, controller: Controller, who: str) -> None:
        """Prolonged, for one; written again as it is, as after a change of the encryption key, it may be."""
        client, by = attacker(enrolling, who, "x"), controller.token(controller.node())
        path = f"{SECRETS}/bootstrap-token-{by.handed.token}"
        found = client.request("GET", path).body
        assert client.request("PUT", path, found).status == 200
        more = base64.b64encode(b"2099-01-01T00:00:00Z").decode()
        patch = [{"op": "replace", "path": "/data/expiration", "value": more}]
        refused(client.request("PATCH", path, patch, JSON_PATCH), "nobody changes one")

    def test_one_from_before_there_were_policies_is_good_for_nothing(
        self, enrolling: Server, root: Client, controller: Controller, machine: Machine
    ) -> None:
        """Of the group with which kubelets of hosts that Ansible builds ask for their certificates."""
        old = self.handed()
        files = enrolling.policy_files()
        enrolling.load({name: text for name, text in files.items() if name != "enrolments.yaml"})
        try:
            made = secret(old, datetime.now(UTC) + self.HOUR, **{"auth-extra-groups": "system:bootstrappers:muster"})
            assert root.request("POST", SECRETS, made).status == 201
        finally:
            enrolling.load(files)
        by = Bearer(enrolling.client(None), replace(old, node=controller.node()))
        refused(machine.asks(by, {"metadata": {"generateName": "csr-"}}), ONLY)


class TestOthers:
    @pytest.mark.parametrize("who", ["root", "admin", "admitter", "kubelet"])
    def test_write_no_enrolment(self, enrolling: Server, controller: Controller, machine: Machine, who: str) -> None:
        """Nobody enrols in a machine's place, decides in the provisioner's, or frees a token that was used."""
        node = controller.node()
        by = controller.token(node)
        assert machine.enrols(by).status == 200
        client = enrolling.client(ADMITTER_USER) if who == "admitter" else attacker(enrolling, who, node)
        word = OTHERS if who == "root" else "forbidden"
        own = {"approved": True, "who": "x", "why": "x", "at": "x"}
        refused(client.request("PATCH", f"{ENROLMENTS}/{node}", {"spec": {"decision": own}}, MERGE_PATCH), word)
        refused(client.request("DELETE", f"{ENROLMENTS}/{node}"), word)
        body = {"apiVersion": "muster.dev/v1", "kind": "NodeEnrolment", "metadata": {"name": f"{node}-2"}}
        refused(client.request("POST", ENROLMENTS, {**body, "spec": {"token": "abcdef", "ends": "x"}}), word)

    @pytest.mark.parametrize("part", ["claim", "signature"])
    def test_do_not_change_what_a_machine_said(
        self, controller: Controller, provisioner: Client, machine: Machine, thief: Machine, part: str
    ) -> None:
        node = controller.node()
        by = controller.token(node)
        assert machine.enrols(by).status == 200
        said = thief.claim(by.handed).canonical().decode()
        word = "what a machine has said of itself stays as it is"
        for spec in ({part: said}, {part: None}, {"token": "abcdef"}):
            refused(provisioner.request("PATCH", f"{ENROLMENTS}/{node}", {"spec": spec}, MERGE_PATCH), word)


class TestApproving:
    def test_a_copy_of_another_machine_is_refused(
        self, controller: Controller, machine: Machine, thief: Machine
    ) -> None:
        """Whose image had keys in it, or whose disk was cloned."""
        first, second = controller.node(), controller.node()
        assert machine.enrols(controller.token(first)).status == 200
        let_in(controller, first)
        assert machine.enrols(controller.token(second)).status == 200
        with pytest.raises(EnrolmentError, match=f"its host key is that of {first}"):
            let_in(controller, second)
        third = controller.node()
        assert thief.enrols(controller.token(third), machine_id=machine.machine_id).status == 200
        with pytest.raises(EnrolmentError, match=f"its machine id is that of {first}"):
            let_in(controller, third)

    def test_two_that_wait_and_are_copies_are_refused(self, controller: Controller, machine: Machine) -> None:
        first, second = controller.node(), controller.node()
        for node in (first, second):
            assert machine.enrols(controller.token(node)).status == 200
        with pytest.raises(EnrolmentError, match=f"{second} enrolled with the same host key or machine id"):
            let_in(controller, first)

    def test_another_key_than_the_pinned_one_is_refused(self, controller: Controller, machine: Machine) -> None:
        node = controller.node(address="198.18.0.77")
        controller.state.known_hosts.parent.mkdir()
        other = "AAAAC3NzaC1lZDI1NTE5AAAAIJdmH2kYqVfJkIjmQyLbO3Ih1KkQ2Tc3E7c2Yo0Vf5Q1"
        controller.state.known_hosts.write_text(f"198.18.0.77 ssh-ed25519 {other}\n")
        assert machine.enrols(controller.token(node)).status == 200
        with pytest.raises(EnrolmentError, match=r"has another host key for 198.18.0.77, .* forget it \(ssh-keygen -R"):
            let_in(controller, node)

    def test_a_revoked_key_is_refused(self, controller: Controller, machine: Machine) -> None:
        node = controller.node(address="198.18.0.78")
        controller.state.known_hosts.parent.mkdir()
        controller.state.known_hosts.write_text(f"@revoked * {machine.host_key}\n")
        assert machine.enrols(controller.token(node)).status == 200
        with pytest.raises(EnrolmentError, match="marks its host key @revoked"):
            let_in(controller, node)

    def test_what_is_not_signed_by_the_key_that_it_names_is_refused(
        self, controller: Controller, machine: Machine, thief: Machine
    ) -> None:
        """Else somebody could pin a key that he has only seen."""
        node = controller.node()
        assert thief.enrols(controller.token(node), host_key=machine.host_key).status == 200
        with pytest.raises(EnrolmentError, match="not signed by the host key that it names"):
            let_in(controller, node)

    def test_a_node_that_nobody_knows_gets_no_token(self, controller: Controller) -> None:
        with pytest.raises(EnrolmentError, match="nobody: the ledger has no entry for it; add it"):
            controller.token("nobody")

    def test_one_whose_machine_has_not_come_is_not_approved(self, controller: Controller) -> None:
        node = controller.token(controller.node()).handed.node
        with pytest.raises(EnrolmentError, match="no machine has come with its token yet"):
            let_in(controller, node)

    def test_a_machine_that_has_enrolled_is_not_replaced_by_chance(
        self, controller: Controller, machine: Machine
    ) -> None:
        node = controller.node()
        assert machine.enrols(controller.token(node)).status == 200
        with pytest.raises(EnrolmentError, match=r"waits for a decision .* give --again"):
            controller.token(node)
