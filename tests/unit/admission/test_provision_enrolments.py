"""What the provisioner does for machines that enrol themselves: their kind, their pod range, and their end."""

from __future__ import annotations

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.provision import Provisioned, Wanted, pin, provision
from gpu_burnin.api.enrolment import EnrolmentSpec, enrolment_document
from gpu_burnin.api.heartbeat import Heartbeat, heartbeat_document
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Identity
from tests.support.admission_helpers import make_node
from tests.support.fake_api import FakeApi

NAMES = Names()
KEPT: list[tuple[str, str, int, str]] = []


def provisioned(kube: KubeApi, *nodes: str, enrolments: bool = True) -> Provisioned:
    wanted = [Wanted(name, Identity(addresses=("10.0.0.1",), pod_range="198.19.1.0/24")) for name in nodes]
    return provision(
        kube, NAMES, wanted, [], [], apply=True, enrolments=enrolments, carried={}, keep=lambda *seen: KEPT.append(seen)
    )


def test_the_kind_is_defined_where_machines_enrol(api: FakeApi, kube: KubeApi) -> None:
    provisioned(kube, "gpu-1", enrolments=False)
    assert NAMES.enrolment_crd not in api.objects["customresourcedefinitions"]
    provisioned(kube, "gpu-1")
    assert NAMES.enrolment_crd in api.objects["customresourcedefinitions"]
    assert api.objects["nodeadmissions"]["gpu-1"]["spec"]["identity"]["podRange"] == "198.19.1.0/24"


def test_an_enrolment_goes_with_its_node(api: FakeApi, kube: KubeApi) -> None:
    """Also where there is none."""
    provisioned(kube, "gpu-1", "gpu-2", "gpu-3")
    for name in ("gpu-1", "gpu-2"):
        api.put("nodeenrolments", enrolment_document(name, EnrolmentSpec("abcdef", "x"), NAMES))
    provisioned(kube, "gpu-2")
    assert list(api.objects["nodeadmissions"]) == list(api.objects["nodeenrolments"]) == ["gpu-2"]


@pytest.mark.parametrize("anew", [False, True])
def test_what_comes_under_a_name_while_its_entry_goes_stays(api: FakeApi, kube: KubeApi, *, anew: bool) -> None:
    """Somebody takes the node in again: a token for it, changed or `anew`, and its agent's word are no rest of before.
    What the others left goes."""
    provisioned(kube, "gpu-1", "gpu-2")

    def put(name: str, token: str) -> None:
        api.put("nodeenrolments", enrolment_document(name, EnrolmentSpec(token, "x"), NAMES))
        api.put("agentheartbeats", heartbeat_document(name, Heartbeat(token, "", ""), NAMES))

    for name in ("gpu-1", "gpu-2"):
        put(name, "before")
    remaining = api.remove

    def remove(resource: str, key: str) -> None:
        remaining(resource, key)
        if (resource, key) == ("nodeadmissions", "gpu-1"):
            for kind in ("nodeenrolments", "agentheartbeats") if anew else ():
                remaining(kind, key)
            put(key, "since")

    api.remove = remove  # type: ignore[method-assign]
    assert dict(provisioned(kube).acts) == {"gpu-1": "removed", "gpu-2": "removed"}
    assert api.objects["nodeenrolments"]["gpu-1"]["spec"]["token"] == "since"
    assert list(api.objects["nodeenrolments"]) == list(api.objects["agentheartbeats"]) == ["gpu-1"]


@pytest.mark.parametrize(("started", "left"), [("before", []), ("since", ["gpu-1"])])
def test_a_heartbeat_that_is_renewed_while_its_entry_goes_is_the_same_rest(
    api: FakeApi, kube: KubeApi, started: str, left: list[str]
) -> None:
    """By the process that had it. That of another one is of a machine that came meanwhile."""
    provisioned(kube, "gpu-1")
    api.put("agentheartbeats", heartbeat_document("gpu-1", Heartbeat("boot", "before", "1"), NAMES))
    renewed = [heartbeat_document("gpu-1", Heartbeat("boot", started, "2"), NAMES)]

    def meanwhile(path: str) -> None:
        if "/agentheartbeats/" in path and renewed:
            api.put("agentheartbeats", renewed.pop())

    api.before_write = meanwhile
    assert dict(provisioned(kube).acts) == {"gpu-1": "removed"}
    assert list(api.objects["agentheartbeats"]) == left


def test_pinning_writes_key_and_machine_and_nothing_else(api: FakeApi, kube: KubeApi) -> None:
    provisioned(kube, "gpu-1")
    before = api.objects["nodeadmissions"]["gpu-1"]["spec"]
    key = "ssh-ed25519 AAAA"
    for _ in range(2):
        pin(kube, NAMES, "gpu-1", key, "1" * 32, carried=(7, "0" * 64), keep=lambda *seen: KEPT.append(seen))
    after = api.objects["nodeadmissions"]["gpu-1"]["spec"]
    changed = {"hostKey": key, "machineID": "1" * 32, "carriedSequence": 7, "carriedReportSHA256": "0" * 64}
    assert after == {**before, "identity": {**before["identity"], **changed}}
    assert KEPT == []


def test_an_entry_that_is_written_meanwhile_stays_with_its_enrolment(api: FakeApi, kube: KubeApi) -> None:
    """As by the admitter, whose node comes back."""
    provisioned(kube, "gpu-1", "gpu-2")
    for name in ("gpu-1", "gpu-2"):
        api.put("nodeenrolments", enrolment_document(name, EnrolmentSpec("abcdef", "x"), NAMES))
    back = [{"status": {"state": "new"}}]

    def meanwhile(path: str) -> None:
        if path.endswith("/nodeadmissions/gpu-1") and back:
            api.merge("nodeadmissions", "gpu-1", back.pop())

    api.before_write = meanwhile
    done = provisioned(kube)
    assert list(api.objects["nodeadmissions"]) == list(api.objects["nodeenrolments"]) == ["gpu-1"]
    assert (dict(done.acts), list(done.before)) == ({"gpu-2": "removed"}, ["gpu-2"])
    (note,) = done.notes
    assert note.startswith("gpu-1: its NodeAdmission was written since it was read (") and "run this again" in note
    api.put_node(make_node(name="gpu-1"))
    (note,) = provisioned(kube).notes
    assert note.startswith("gpu-1: its Node came while this ran") and list(api.objects["nodeadmissions"]) == ["gpu-1"]
    api.remove("nodes", "gpu-1")
    assert dict(provisioned(kube).acts) == {"gpu-1": "removed"} and not api.objects["nodeenrolments"]
