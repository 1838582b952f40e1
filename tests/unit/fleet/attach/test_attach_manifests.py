"""What `muster attach` renders: the same gate as the static one, rights that are small, and pods that keep to them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.api.attached import GpuNodes, Mode, parse_attached, parse_gpu_nodes
from gpu_burnin.api.names import Names
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.attach import course, render
from gpu_burnin.fleet.attach.discover import Capabilities, Found, blocked, changes_of
from gpu_burnin.fleet.attach.manifests import Parts, parts
from gpu_burnin.fleet.attach.settings import POLICY_TAINTS, WEBHOOK_TAINTS, Settings, check
from gpu_burnin.node.contained import LINKS
from gpu_burnin.node.unit import RUN_DIR
from gpu_burnin.system.own_name import NODE_VARIABLE, host_name
from tests.integration.kube_files import gate_file

NOW = datetime(2026, 11, 28, tzinfo=UTC)
NODES = GpuNodes("example.com/gpu", "yes", ("gpu-x",))
ENFORCING = Settings("registry.example.com/muster:1", NODES, Mode.ENFORCING, WEBHOOK_TAINTS)
OBSERVING = replace(ENFORCING, mode=Mode.OBSERVING)
CA = {"ca.crt": "certificate", "ca.key": "key"}


def made(settings: Settings = ENFORCING) -> Parts:
    return parts(settings, CA)


def one(found: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    [item] = [each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return item


def pods(of: Parts) -> dict[str, dict[str, Any]]:
    work = (each for each in of.workloads if "template" in each.get("spec", {}))
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in work}


def test_the_gate_has_every_rule_of_the_static_one() -> None:
    """One source: whoever adds a rule to the template adds it to both."""
    static = [
        each
        for name in ("gate.yaml", "admissions.yaml")
        for each in yaml.safe_load_all(gate_file(name, Path("/etc/kubernetes")))
        if each["kind"] == "ValidatingAdmissionPolicy"
    ]
    attached = {each["metadata"]["name"]: each for each in made().gate if not each["kind"].endswith("Binding")}
    left_out = set()
    for policy in static:
        name = policy["metadata"]["name"].removesuffix(".static.k8s.io")
        if f"{name}.attached" not in attached:
            left_out.add(name)
            continue
        other = attached[f"{name}.attached"]
        assert len(other["spec"]["validations"]) == len(policy["spec"]["validations"])
        assert other["spec"]["matchConstraints"] == policy["spec"]["matchConstraints"]
    assert left_out == {"muster-ledger-definition"}
    assert "NoExecute" not in str(made().gate)


def test_an_attached_node_has_no_part_in_tests_with_others() -> None:
    for policy, variable in (("muster-node-gate", "ownKeys"), ("muster-agents", "ours")):
        rules = one(made().gate, "ValidatingAdmissionPolicy", f"{policy}.attached")["spec"]
        [expression] = [each["expression"] for each in rules["variables"] if each["name"] == variable]
        assert "evidence" in expression and "agent" in expression and "fabric" not in expression
        assert "fabric" not in str(rules["validations"])


def test_each_policy_is_bound_and_denies() -> None:
    policies = {each["metadata"]["name"] for each in made().gate if each["kind"] == "ValidatingAdmissionPolicy"}
    bindings = [each for each in made().gate if each["kind"].endswith("Binding")]
    assert {each["spec"]["policyName"] for each in bindings} == policies
    assert all("Deny" in each["spec"]["validationActions"] for each in bindings)


def test_while_it_observes_nothing_taints_and_no_taint_is_asked_for() -> None:
    of = made(OBSERVING)
    assert of.taint == []
    assert "muster-preflight-taint" not in pods(of)
    gate = one(of.gate, "ValidatingAdmissionPolicy", "muster-node-gate.attached")
    [exempt] = [each for each in gate["spec"]["variables"] if each["name"] == "systemNode"]
    assert exempt["expression"] == "true"
    assert parse_attached(one(of.config, "ConfigMap", "muster-attached")).mode is Mode.OBSERVING


def test_all_that_the_agent_says_names_its_node_and_not_its_pod() -> None:
    [container] = pods(made())["muster-node"]["containers"]
    [source] = [each["valueFrom"] for each in container["env"] if each["name"] == NODE_VARIABLE]
    assert source == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert container["args"][-2:] == ["--node-name", f"$({NODE_VARIABLE})"]
    assert host_name({NODE_VARIABLE: "gpu-7"}) == "gpu-7"


def test_a_webhook_that_is_away_decides_nothing() -> None:
    [hook] = one(made().taint, "MutatingWebhookConfiguration")["webhooks"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 5)
    assert [rule["operations"] for rule in hook["rules"]] == [["CREATE"]]
    assert base64.b64decode(hook["clientConfig"]["caBundle"]) == b"certificate"
    by_policy = parts(replace(ENFORCING, taints_by=POLICY_TAINTS), {})
    assert {each["kind"] for each in by_policy.taint} == {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    assert "muster-preflight-taint" not in pods(by_policy)
    assert not [each for each in by_policy.config if each["kind"] == "Secret"]


def test_the_probe_asks_for_a_node_that_the_webhook_is_to_taint() -> None:
    def labels(settings: Settings) -> object:
        data = one(made(settings).config, "ConfigMap", "muster-gate")["data"]
        return json.loads(data["gate.json"])["labels"]

    assert labels(ENFORCING) == {"example.com/gpu": "yes"}
    for settings in (
        OBSERVING,
        replace(ENFORCING, taints_by=POLICY_TAINTS),
        replace(ENFORCING, gpu_nodes=GpuNodes(names=("gpu-x",))),
    ):
        assert labels(settings) == {}


def test_the_control_side_prefers_other_nodes_and_is_drained_one_at_a_time() -> None:
    of, found = made(), pods(made())
    for name in ("muster-admitter", "muster-preflight-taint", "muster-gate-probe"):
        affinity = found[name]["affinity"]
        terms = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        label, field = ("example.com/gpu", "NotIn", ["yes"]), ("metadata.name", "NotIn", ["gpu-x"])
        assert [tuple(each.values()) for term in terms for each in next(iter(term["preference"].values()))] == [
            label,
            field,
        ]
        assert "requiredDuringSchedulingIgnoredDuringExecution" not in str(affinity)
        apart = (affinity.get("podAntiAffinity") or {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])
        [replicas] = [
            each["spec"]["replicas"]
            for each in of.workloads
            if each["metadata"]["name"] == name and each["kind"] == "Deployment"
        ]
        budgets = [each for each in of.workloads if each["kind"] == "PodDisruptionBudget"]
        mine = [each for each in budgets if each["metadata"]["name"] == name]
        # A budget of one pod would hold up each drain.
        assert (len(apart), len(mine)) == ((1, 1) if replicas > 1 else (0, 0)), name
        labels = {"app.kubernetes.io/name": name}
        assert all(each["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels for each in apart)
        assert all(each["spec"]["selector"]["matchLabels"] == labels for each in mine)
    by_policy = parts(replace(ENFORCING, taints_by=POLICY_TAINTS), {}).workloads
    assert [each["metadata"]["name"] for each in by_policy if each["kind"] == "PodDisruptionBudget"] == [
        "muster-admitter"
    ]


def test_no_pod_of_others_gives_way_to_one_of_muster() -> None:
    priority = one(made().workloads, "PriorityClass")
    assert {pod["priorityClassName"] for pod in pods(made()).values()} == {priority["metadata"]["name"]}
    assert (priority["preemptionPolicy"], priority["globalDefault"]) == ("Never", False)
    assert priority["value"] <= 1_000_000_000


def test_the_probe_and_the_admitter_write_no_more_than_their_events() -> None:
    roles = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in made().rights if "rules" in each}
    events = {key: [rule for rule in rules if "events" in rule["resources"]] for key, rules in roles.items()}
    found = {key: rules for key, rules in events.items() if rules}
    assert set(found) == {("Role", "muster-gate-probe"), ("ClusterRole", "muster-admitter")}
    assert found["Role", "muster-gate-probe"][0]["resourceNames"] == ["muster-gate"]
    assert found["ClusterRole", "muster-admitter"][0]["verbs"] == ["create"]


def test_no_account_may_read_secrets_or_change_what_admits() -> None:
    rules = [rule for each in made().rights if "rules" in each for rule in each["rules"]]
    assert not {"secrets", "*"} & {resource for rule in rules for resource in rule["resources"]}
    hooks = [rule for rule in rules if "admissionregistration.k8s.io" in rule["apiGroups"]]
    assert [rule["verbs"] for rule in hooks] == [["get"]]
    assert not {"impersonate", "escalate", "bind", "*"} & {verb for rule in rules for verb in rule["verbs"]}


def test_only_the_nodes_part_is_privileged_and_no_token_lasts() -> None:
    found = pods(made())
    assert set(found) == {"muster-admitter", "muster-gate-probe", "muster-preflight-taint", "muster-node"}
    for name, pod in found.items():
        [container] = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"]
        # The image has no entry point: arguments alone would be the program.
        assert container["command"] == ["gpu-burnin" if name == "muster-node" else "muster"]
        if name == "muster-node":
            assert container["securityContext"]["privileged"]
            assert {"operator": "Exists"} in pod["tolerations"]
        else:
            assert pod["securityContext"]["runAsNonRoot"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "serviceAccountName" not in found["muster-preflight-taint"]
    assert "token" not in {volume["name"] for volume in found["muster-preflight-taint"]["volumes"]}
    terms = found["muster-node"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert len(terms["nodeSelectorTerms"]) == 2


def test_the_agent_leaves_a_node_whose_driver_is_to_be_left_alone() -> None:
    affinity = pods(made())["muster-node"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for term in terms:
        away = {each["key"]: each["values"] for each in term["matchExpressions"] if each["operator"] == "NotIn"}
        assert away == {
            "nvidia.com/gpu.deploy.operator-validator": ["paused-for-driver-upgrade"],
            "nvidia.com/gpu.deploy.client": ["paused-for-driver-upgrade", "paused-for-mig-change"],
        }
    assert terms[0]["matchExpressions"][0] == {"key": "example.com/gpu", "operator": "In", "values": ["yes"]}
    assert terms[1]["matchFields"][0]["values"] == ["gpu-x"]


def mounts(settings: Settings) -> dict[str, tuple[str, bool]]:
    """Of the node's part: what of the host is where, and whether it is only read."""
    pod = pods(made(settings))["muster-node"]
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    [container] = pod["containers"]
    found = {one["mountPath"]: one for one in container["volumeMounts"] if one["name"] in paths}
    return {place: (paths[one["name"]], one["readOnly"]) for place, one in found.items()}


def test_of_the_host_the_node_sees_what_it_needs() -> None:
    usual = {
        "/var/lib/gpu-burnin": ("/var/lib/gpu-burnin", False),
        "/run/muster": ("/run/muster", False),
        "/etc/machine-id": ("/etc/machine-id", True),
        "/dev": ("/dev", False),
        "/driver": ("/run/nvidia/driver", True),
    }
    settings = replace(ENFORCING, driver_root="/run/nvidia/driver")
    assert mounts(settings) == usual
    by_ssh = replace(settings, ssh_host_keys=True)
    assert mounts(by_ssh) == {**usual, "/etc/ssh": ("/etc/ssh", True)}
    for of, key in ((settings, "/var/lib/gpu-burnin/identity/ed25519"), (by_ssh, "/etc/ssh/ssh_host_ed25519_key")):
        config = one(made(of).config, "ConfigMap", "muster-config")["data"]["agent.yaml"]
        assert yaml.safe_load(config)["host_key"] == key


def test_a_driver_that_comes_late_is_found() -> None:
    """That of a container does; and glibc looks once whether the folder is there, before the agent has made it."""
    [container] = pods(made())["muster-node"]["containers"]
    found = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert found["/driver"]["mountPropagation"] == "HostToContainer"
    [place] = [one["value"] for one in container["env"] if one["name"] == "LD_LIBRARY_PATH"]
    assert place == str(RUN_DIR / LINKS)
    assert place in found


def test_the_same_settings_make_the_same_objects() -> None:
    assert made() == made()
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in made().all()]
    assert len(set(names)) == len(names)
    assert all(each["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "muster" for each in made().all())


def test_rendering_again_keeps_the_authority(tmp_path: Path) -> None:
    first = render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW)
    assert [note for note in first.notes if "a new authority of the webhook was made" in note] == [*first.notes]
    texts = {path.name: path.read_text() for path in first.files}
    again = render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW)
    assert ({path.name: path.read_text() for path in again.files}, again.notes) == (texts, ())
    # As in a checkout, which has the manifests alone.
    for name in ("ca.crt", "ca.key"):
        (tmp_path / name).unlink()
    again = render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW)
    assert ({path.name: path.read_text() for path in again.files}, again.notes) == (texts, ())
    assert (tmp_path / "ca.key").exists()
    # What nobody applies any more goes on in the cluster until it is deleted.
    [note] = render.write(tmp_path, OBSERVING, WEBHOOK_TAINTS, NOW).notes
    assert "kubectl delete mutatingwebhookconfiguration muster-preflight-taint" in note
    assert "kubectl delete service muster-preflight-taint --namespace muster-system" in note
    assert "muster-admitter" not in note and not (tmp_path / "50-taint.yaml").exists()
    assert all((path.stat().st_mode & 0o077) == 0 for path in tmp_path.iterdir())


def test_a_secret_that_cannot_be_read_makes_another_authority_and_says_so(tmp_path: Path) -> None:
    render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW)
    config, secret = tmp_path / "30-config.yaml", tmp_path / "ca.key"
    before = secret.read_text()
    documents = list(yaml.safe_load_all(config.read_text()))
    for each in documents:
        each["data"] = dict.fromkeys(each["data"], "ENC[AES256_GCM]") if each["kind"] == "Secret" else each["data"]
    config.write_text(yaml.safe_dump_all(documents))
    secret.unlink()
    [note] = render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW).notes
    assert "is believed no more" in note and secret.read_text() != before
    config.write_text("{")
    assert render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW).notes == ()


def test_rendering_in_the_last_year_makes_an_authority_beside_the_old_one(tmp_path: Path) -> None:
    render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW)
    old = (tmp_path / "ca.crt").read_text()
    [note] = render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW + timedelta(days=3649)).notes
    assert "the old one is believed beside it" in note
    new = (tmp_path / "ca.crt").read_text()
    assert new.endswith(old) and new != old
    assert base64.b64encode(new.encode()).decode() in (tmp_path / "50-taint.yaml").read_text().replace("\n      ", "")
    render.write(tmp_path, ENFORCING, WEBHOOK_TAINTS, NOW + timedelta(days=3651))
    assert (tmp_path / "ca.crt").read_text() == new


def test_what_a_later_attach_leaves_out_is_named() -> None:
    was = {"mode": "enforcing", "--gpu-nodes": ENFORCING.gpu_nodes.words, "--level": "quick", "--driver-root": "/run/x"}
    was |= {"--ssh-host-keys": "yes"}
    assert changes_of(was, ENFORCING) == (
        "--level standard, was quick",
        "--driver-root /, was /run/x",
        "--ssh-host-keys no, was yes",
    )
    assert changes_of({}, ENFORCING) == ()


@pytest.mark.parametrize(("label", "late"), [("example.com/gpu", False), ("nvidia.com/gpu.present", True)])
def test_labels_that_come_late_are_named_and_the_next_step_is_one(label: str, late: bool) -> None:
    can, found = Capabilities("v1", True, True, False, ()), Found((), (), (), ("a/b",))
    settings = replace(OBSERVING, gpu_nodes=GpuNodes(label, "yes"))
    done = course.Written(can, found, settings, (), ())
    text = render.text(done, dry_run=True)
    assert ("labels of this kind mostly come after" in text) is late
    assert text.endswith("next: the same without --dry-run\n") and "once you --enforce" in text
    enforcing = render.text(replace(done, settings=replace(settings, mode=Mode.ENFORCING)), dry_run=False)
    assert "these stay away from new GPU Nodes, until they tolerate" in enforcing and "muster attach nodes" in enforcing


@pytest.mark.parametrize(
    ("nodes", "unapproved", "then"),
    [
        (("gpu-1",), (), "muster status\n"),
        (("gpu-1",), ("gpu-1",), "muster attach approve NODE\n"),
        (("gpu-1",), None, "muster attach approve NODE\n"),
        ((), (), "muster attach approve NODE\n"),
    ],
)
def test_where_all_are_approved_status_is_next(
    nodes: tuple[str, ...], unapproved: tuple[str, ...] | None, then: str
) -> None:
    can = Capabilities("v1", True, True, False, ())
    done = course.Written(can, Found(nodes, (), (), ()), ENFORCING, (), (), unapproved=unapproved)
    assert render.text(done, dry_run=False).endswith(then)
    shown = render.to_json(done, dry_run=False)["unapproved"]
    assert shown == (None if unapproved is None else list(unapproved))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ((), "is for you to say"),
        (("a=b", "c=d"), "two labels"),
        (("a='b",), "is no label"),
        (("x'] || true || ['",), "is no name"),
        (("a b=c",), "is no label"),
    ],
)
def test_what_is_no_label_or_name_is_refused(texts: tuple[str, ...], words: str) -> None:
    with pytest.raises(GpuBurninError, match=words):
        parse_gpu_nodes(texts)


@pytest.mark.parametrize(
    "change", [{"image": "a b"}, {"driver_root": "/../x"}, {"level": "deep"}, {"mode": Mode.BUILT}]
)
def test_settings_that_no_cluster_takes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(GpuBurninError):
        check(replace(ENFORCING, **change))
    check(ENFORCING)


@pytest.mark.parametrize(
    ("spec", "kept_away"),
    [
        ({}, True),
        ({"nodeSelector": {"role": "web"}}, False),
        ({"tolerations": [{"operator": "Exists"}]}, False),
        ({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}, True),
        ({"tolerations": [{"key": "muster.dev/preflight", "operator": "Exists", "effect": "NoExecute"}]}, True),
        ({"tolerations": [{"key": "muster.dev/preflight", "effect": "NoSchedule"}]}, False),
    ],
)
def test_a_daemon_set_that_the_taint_keeps_away_is_found(spec: dict[str, Any], kept_away: bool) -> None:
    nodes = [{"metadata": {"name": "gpu-1", "labels": {"example.com/gpu": "yes"}}}]
    assert blocked({"spec": {"template": {"spec": spec}}}, nodes, ENFORCING) is kept_away


def test_a_node_is_left_as_it_was() -> None:
    node = {
        "metadata": {"labels": {"a": "b", "muster.node-restriction.kubernetes.io/ready": "true"}, "annotations": {}},
        "spec": {"taints": [{"key": "muster.dev/preflight", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready"}, {"type": "GPUVerified"}]},
    }
    paths = [step["path"] for step in course.traces(node, Names())]
    assert paths == ["/spec/taints", "/metadata/labels/muster.node-restriction.kubernetes.io~1ready"]
    assert course.traces({"metadata": {"labels": {"a": "b"}}}, Names()) == []
