"""When a machine may be a node of an attached cluster."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpu_burnin.admission.client import ApiError, KubeApi, NotFound
from gpu_burnin.admission.kubeconfig import current_cluster
from gpu_burnin.api.attached import ENROLLED_BY_AGENT
from gpu_burnin.api.enrolment import Claim, Decision, Enrolment, EnrolmentError, EnrolmentSpec, enrolment_document
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Identity, NodeAdmission, Spec, document
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.attach import approve as module
from gpu_burnin.fleet.attach.approve import (
    Claimed,
    approve,
    decided_anew,
    doubts_of,
    due,
    provisioner,
    unapproved,
    with_known,
    with_token,
)
from gpu_burnin.fleet.attach.expected import COMPARED, FIRST_USE, Trust, of_file
from gpu_burnin.fleet.attach.ledger import Ledger, doubles_of
from tests.support.enrolments import CLAIM, KEY, MACHINE
from tests.support.fake_api import FakeApi, refusing

ENROLMENT = Enrolment("gpu-1", EnrolmentSpec(ENROLLED_BY_AGENT, ""))
NODE = {"metadata": {"uid": "u-1"}, "status": {"nodeInfo": {"machineID": MACHINE}}}


def entry(name: str, **identity: Any) -> dict[str, NodeAdmission]:
    return {name: NodeAdmission(name, Spec(identity=Identity(**identity)))}


@pytest.mark.parametrize(
    ("node", "ledger", "again", "words"),
    [
        (NODE, {}, False, ""),
        (None, {}, False, "there is no Node"),
        ({**NODE, "status": {}}, {}, False, "its kubelet of none"),
        (NODE, entry("gpu-2", host_key=KEY), False, "its key is that of gpu-2"),
        (NODE, entry("gpu-2", machine_id=MACHINE), False, "its machine id is that of gpu-2"),
        (NODE, entry("gpu-1", host_key="ssh-ed25519 BBBB"), False, "approved with another key"),
        (NODE, entry("gpu-1", host_key="ssh-ed25519 BBBB"), True, ""),
        (NODE, entry("gpu-1", host_key=KEY, node_uid="u-0"), False, "made anew"),
        (NODE, entry("gpu-1", host_key=KEY, node_uid="u-1"), False, ""),
    ],
)
def test_what_is_in_doubt_is_named(node: object, ledger: dict[str, NodeAdmission], again: bool, words: str) -> None:
    found = doubts_of(ENROLMENT, CLAIM, node, ledger, again=again)  # type: ignore[arg-type]
    assert (words in " ".join(found)) if words else found == []


def test_what_is_known_of_a_key_stays_and_does_not_count_for_another_one() -> None:
    old = Identity(host_key=KEY, trust=COMPARED, carried_sequence=7, carried_report_sha256="c" * 64)
    again = with_known(Identity(host_key=KEY, trust=FIRST_USE), old)
    assert again == old
    other = Identity(host_key="ssh-ed25519 BBBB", trust=FIRST_USE)
    assert with_known(other, old) == other
    assert with_known(replace(old, trust=COMPARED), replace(old, trust=FIRST_USE)).trust == COMPARED


BY_HAND = Decision(True, "ops", "by hand: its key was compared with nothing", "t")


@pytest.mark.parametrize(
    ("before", "trust", "pinned", "anew"),
    [
        (None, Trust(), "", True),
        (replace(BY_HAND, approved=False), Trust(), "first-use", True),
        (BY_HAND, Trust(), "first-use", False),
        (BY_HAND, Trust(COMPARED, "its fingerprint was compared"), "first-use", True),
        (BY_HAND, Trust(why="its machine id is the one in f; its key was compared with nothing"), "first-use", True),
        (BY_HAND, Trust(why="its machine id is the one in f; its key was compared with nothing"), "compared", False),
        (
            replace(BY_HAND, why="x: its fingerprint was compared"),
            Trust(COMPARED, "its fingerprint was compared"),
            "compared",
            False,
        ),
    ],
)
def test_a_decision_says_what_was_compared_since(before: Any, trust: Trust, pinned: str, anew: bool) -> None:
    assert decided_anew(before, trust, Identity(host_key=KEY, trust=pinned)) is anew


def test_a_file_of_keys_is_for_those_that_wait_and_those_of_first_use(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"gpu-1 ssh-ed25519 {'A' * 68}\n")
    expected, known = of_file(file), Claimed("gpu-1", CLAIM, BY_HAND, trust=FIRST_USE)
    assert due(replace(known, decision=None), None) and due(known, expected)
    assert not due(known, None) and not due(replace(known, trust=COMPARED), expected)
    assert not due(replace(known, claim=replace(CLAIM, node="gpu-2")), expected)


def test_a_machine_of_an_image_is_not_approved_here() -> None:
    other = replace(ENROLMENT, spec=replace(ENROLMENT.spec, token="abcdef"))
    [why] = doubts_of(other, CLAIM, NODE, {}, again=False)
    assert "muster image approve" in why


def test_a_token_goes_to_the_cluster_of_the_current_context(tmp_path: Path) -> None:
    path = tmp_path / "config"
    of: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority": "ca.crt"}}]
    }
    of |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    path.write_text(yaml.safe_dump(of))
    made = with_token(path, "t")
    assert made["users"] == [{"name": "u", "user": {"token": "t"}}]
    assert made["clusters"][0]["cluster"]["certificate-authority"] == str(tmp_path / "ca.crt")
    for text, says in (
        ("{}", "it has no current context; choose one"),
        (yaml.safe_dump({**of, "current-context": "prod"}), "its current context 'prod' names no cluster of it"),
        ("{{{: x", r"cannot read the kubeconfig .*config \(it is no YAML: .*, line 1\)"),
    ):
        path.write_text(text)
        with pytest.raises(GpuBurninError, match=says):
            current_cluster(path)
    path.unlink()
    with pytest.raises(GpuBurninError, match=r"\(No such file or directory\); give --kubeconfig another"):
        current_cluster(path)


def test_where_muster_is_not_attached_nobody_is_the_provisioner(tmp_path: Path) -> None:
    class Bare(Cluster):
        def create(self, *_: Any) -> Any:
            raise NotFound('https://x: cannot ask for a token of muster-provisioner: "muster-system" not found')

    with pytest.raises(EnrolmentError, match="not found: Muster is not attached here; run `muster attach`"):
        provisioner(Bare(), tmp_path / "config")  # type: ignore[arg-type]


class Cluster:
    """A ledger, and how often all of it was read; a Node of each name, and tokens."""

    def __init__(self) -> None:
        self.ledger, self.whole, self.tokens = dict[str, Any](), 0, 0
        # The answer of a create or of a token is lost, before or after it was done.
        self.lost = ""

    def items(self, _: str, __: str, **selectors: str) -> list[Any]:
        self.whole += not selectors
        wanted = selectors.get("fieldSelector", "").removeprefix("metadata.name=")
        return [one for name, one in self.ledger.items() if wanted in ("", name)]

    def find(self, path: str, _: str) -> dict[str, Any]:
        return {"metadata": {"name": path.rpartition("/")[2]}}

    def node(self, name: str) -> dict[str, Any]:
        return {"metadata": {"uid": name}, "status": {"nodeInfo": {"machineID": name}}}

    def create(self, path: str, body: dict[str, Any], _: str) -> dict[str, Any]:
        if self.lost == "before":
            raise ApiError("no answer")
        if path.endswith("/token"):
            self.tokens += 1
            return {"status": {"token": f"t{self.tokens}"}}
        self.ledger[body["metadata"]["name"]] = body
        if self.lost == "after":
            raise ApiError("no answer")
        return body


LetIn = Callable[[Ledger, str], Claim]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def let_in(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> LetIn:
    """Approve a node, on first use; gpu-copy has the key of gpu-1."""
    keys = {"gpu-copy": "key of gpu-1"}
    monkeypatch.setattr(module, "parse_enrolment", lambda found: replace(ENROLMENT, name=found["metadata"]["name"]))
    monkeypatch.setattr(module, "decide", lambda *_: None)
    monkeypatch.setattr(
        module,
        "claim_of",
        lambda of: replace(CLAIM, node=of.name, host_key=keys.get(of.name, f"key of {of.name}"), machine_id=of.name),
    )
    return lambda ledger, name: approve(cluster, Names(), name, BY_HAND, "quick", ledger=ledger)  # type: ignore[arg-type]


def ledger_of(cluster: Cluster, now_s: Callable[[], float] = lambda: 0.0) -> Ledger:
    return Ledger(lambda: cluster, Names(), now_s)  # type: ignore[arg-type, return-value]


def test_many_nodes_take_one_reading_of_the_ledger_and_know_of_each_other(cluster: Cluster, let_in: LetIn) -> None:
    ledger = ledger_of(cluster)
    for name in ("gpu-1", "gpu-2", "gpu-3", "gpu-1"):
        assert let_in(ledger, name).node == name
    assert (sorted(cluster.ledger), cluster.whole) == (["gpu-1", "gpu-2", "gpu-3"], 1)
    with pytest.raises(GpuBurninError, match="its key is that of gpu-1"):
        let_in(ledger, "gpu-copy")
    assert ledger.doubles() == [] and cluster.whole == 2
    assert ledger_of(cluster).doubles() == [] and cluster.whole == 2, "who has written nothing reads nothing"


def test_what_another_command_lets_in_meanwhile_is_known_soon_and_named_at_the_end(
    cluster: Cluster, let_in: LetIn
) -> None:
    now_s = [0.0]
    ours, others = ledger_of(cluster, lambda: now_s[0]), ledger_of(cluster)
    let_in(ours, "gpu-2")
    let_in(others, "gpu-1")
    now_s[0] = 31.0
    with pytest.raises(GpuBurninError, match="its key is that of gpu-1"):
        let_in(ours, "gpu-copy")
    assert cluster.whole == 3
    # Within the half minute: both are in, and the one that ends last says so.
    cluster.ledger.pop("gpu-1")
    now_s[0] = 62.0
    let_in(ours, "gpu-3")
    let_in(others, "gpu-1")
    assert others.doubles() == []
    let_in(ours, "gpu-copy")
    [sentence] = ours.doubles()
    assert sentence.startswith("gpu-1 and gpu-copy: they have the same key") and others.doubles() == [sentence]
    of = entry("a", host_key="k", machine_id="m") | entry("b", machine_id="m") | entry("c", host_key="l")
    assert [len(doubles_of(of, names)) for names in (["a"], ["b"], ["c"], [])] == [1, 1, 0, 0]


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_write_without_an_answer_leaves_neither_a_phantom_nor_a_gap(
    lost: str, cluster: Cluster, let_in: LetIn
) -> None:
    ledger = ledger_of(cluster)
    let_in(ledger, "gpu-2")
    cluster.lost = lost
    with pytest.raises(ApiError):
        let_in(ledger, "gpu-1")
    cluster.lost = ""
    if lost == "before":
        assert let_in(ledger, "gpu-copy").node == "gpu-copy"
    else:
        with pytest.raises(GpuBurninError, match="its key is that of gpu-1"):
            let_in(ledger, "gpu-copy")
    assert cluster.whole == 1


def test_a_long_command_asks_for_another_token_before_its_own_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig, cluster, now_s = tmp_path / "config", Cluster(), [0.0]
    of = {"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "current-context": "x"}
    kubeconfig.write_text(yaml.safe_dump({**of, "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    current = provisioner(cluster, kubeconfig, lambda: now_s[0])  # type: ignore[arg-type]
    first = current()
    now_s[0] = 299.0
    assert current() is first and cluster.tokens == 1
    now_s[0] = 301.0
    assert current() is not first and cluster.tokens == 2
    now_s[0] = 590.0
    current()
    assert cluster.tokens == 2
    # One that was not given is asked for again at once: the old one ends soon.
    now_s[0], cluster.lost = 602.0, "before"
    with pytest.raises(ApiError):
        current()
    cluster.lost = ""
    current()
    assert cluster.tokens == 3
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kubeconfig], (
        "a token is in no file, which a kill would leave"
    )


@pytest.mark.parametrize(("other", "words"), [("gpu-2", "gpu-2 and gpu-3"), ("gone", ""), ("silent", "nobody knows")])
def test_the_command_names_whom_another_one_has_let_in_too(
    other: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeApi()

    def provisioner(kube: KubeApi, _: Path) -> Callable[[], KubeApi]:
        return lambda: kube

    def let_in(_: KubeApi, names: Names, node: str, *__: object, ledger: Ledger, **___: object) -> Claim:
        for name in (node, *(["gpu-2"] if other == "gpu-2" else [])):
            server.put("nodeadmissions", document(NodeAdmission(name, Spec(identity=Identity(host_key=KEY))), names))
        ledger.write(NodeAdmission(node), lambda: None)
        server.before_read = refusing(403, "Forbidden", of="nodeadmissions") if other == "silent" else lambda _: None
        return CLAIM

    monkeypatch.setattr(module, "provisioner", provisioner)
    monkeypatch.setattr(module, "approve", let_in)
    try:
        kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
        done = CliRunner().invoke(muster.cli, ["attach", "--kubeconfig", kubeconfig, "approve", "gpu-3"])
    finally:
        server.close()
    assert done.stdout.startswith("gpu-3  approved") and done.exit_code == (1 if words else 0), done.output
    assert words in done.stderr


def test_as_json_it_says_who_was_approved_and_who_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeApi()

    def provisioner(kube: KubeApi, _: Path) -> Callable[[], KubeApi]:
        return lambda: kube

    def let_in(_: KubeApi, names: Names, node: str, *__: object, ledger: Ledger, **___: object) -> Claim:
        if node == "gpu-9":
            raise EnrolmentError("gpu-9: its agent has not come yet")
        for name in (node, "gpu-2"):
            server.put("nodeadmissions", document(NodeAdmission(name, Spec(identity=Identity(host_key=KEY))), names))
        ledger.write(NodeAdmission(node), lambda: None)
        return CLAIM

    monkeypatch.setattr(module, "provisioner", provisioner)
    monkeypatch.setattr(module, "approve", let_in)
    try:
        words = ["attach", "--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig")), "approve", "--json"]
        done = CliRunner().invoke(muster.cli, [*words, "gpu-3", "gpu-9"])
    finally:
        server.close()
    made = json.loads(done.stdout)
    assert done.exit_code == 1 and made["approved"] == [{"node": "gpu-3", "fingerprint": CLAIM.fingerprint}]
    assert made["failed"] == [{"node": "gpu-9", "why": "gpu-9: its agent has not come yet"}]
    assert "gpu-2 and gpu-3" in made["doubles"][0] and made["doubles"][0] in done.stderr


def test_the_level_that_lets_in_is_that_of_the_agents_and_never_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[str] = []

    def let_in(_: KubeApi, __: Names, ___: str, ____: Decision, level: str, **_____: object) -> Claim:
        levels.append(level)
        return CLAIM

    monkeypatch.setattr(module, "provisioner", lambda kube, _: lambda: kube)
    monkeypatch.setattr(module, "approve", let_in)
    server = FakeApi()
    server.objects["nodeadmissions"] = {}
    words = ["attach", "--kubeconfig", str(server.kubeconfig(tmp_path / "kubeconfig")), "approve", "gpu-3"]

    def configured(text: str) -> None:
        made = {"metadata": {"name": "muster-config", "namespace": "muster-system"}, "data": {"agent.yaml": text}}
        server.put("configmaps", made)

    def refused(*more: str) -> str:
        error = CliRunner().invoke(muster.cli, [*words, *more]).exception
        assert isinstance(error, GpuBurninError) and error.exit_code == 2
        return str(error)

    try:
        # What is not the level may be as it likes.
        configured("level: standard")
        runs = [CliRunner().invoke(muster.cli, [*words, *more]) for more in ([], ["--level", "extended"])]
        assert "the agents' own level is standard" in refused("--level", "quick")
        for text in ("level: thorough", "level: [", "checks: {}", "[]"):
            configured(text)
            assert "as level in agent.yaml, and not one of quick, standard, extended" in refused("--level", "extended")
        # A job that may read no more than it needs says the level itself.
        server.before_read = refusing(403, "you may not", of="configmaps")
        assert refused().endswith("or give the --level of `muster attach`")
        runs.append(CliRunner().invoke(muster.cli, [*words, "--level", "quick"]))
    finally:
        server.close()
    assert [done.exit_code for done in runs] == [0, 0, 0] and levels == ["standard", "extended", "quick"]
    assert module.least_level("quick", None) == "quick" and module.least_level(None, None) == "standard"


def test_whom_nobody_has_approved_is_known_or_not(tmp_path: Path) -> None:
    server = FakeApi()
    server.objects |= {"nodeadmissions": {}, "nodeenrolments": {}}
    for name, decision in (("gpu-1", Decision(True, "ann", "", "")), ("gpu-2", None)):
        spec = EnrolmentSpec(ENROLLED_BY_AGENT, "", decision=decision)
        server.put("nodeenrolments", enrolment_document(name, spec, Names()))
    try:
        kube = KubeApi(server.kubeconfig(tmp_path / "kubeconfig"))
        assert unapproved(kube, Names(), ("gpu-1", "gpu-2", "gpu-3")) == ("gpu-2", "gpu-3")
        assert unapproved(kube, Names(), ("gpu-1",)) == ()
        server.before_read = refusing(403, "you may not", of="nodeenrolments")
        assert unapproved(kube, Names(), ("gpu-1",)) is None
    finally:
        server.close()
