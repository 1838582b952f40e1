"""The fleet's roles on a real API server: who may write them is used only where one of them differs.

Only here: a real API server says what differs in a role, who may write it, and what it has not kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi
from gpu_burnin.admission.objects import Written, path_of, write_objects
from tests.integration.kube import Client, Server
from tests.integration.kube_files import rbac_objects

ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/muster:admin"


@pytest.fixture(scope="module")
def admin_api(server: Server) -> KubeApi:
    return KubeApi(server.kubeconfig("admin", ["muster:admins"]))


@pytest.fixture(scope="module")
def root_api(server: Server) -> KubeApi:
    return KubeApi(server.kubeconfig("break-glass", ["system:masters"]))


@pytest.fixture
def whole(root_api: KubeApi) -> Iterator[None]:
    """The roles are as they should be again at the end."""
    yield
    write_objects(rbac_objects(), root_api, lambda: root_api, apply=True)


def never() -> KubeApi:
    raise AssertionError("the identity that may write was used")


def as_wanted(reader: KubeApi) -> Written:
    return write_objects(rbac_objects(), reader, never, apply=True)


def test_what_is_as_it_should_be_is_only_read(admin_api: KubeApi) -> None:
    assert as_wanted(admin_api) == Written((), {}, {})


@pytest.mark.parametrize("change", [{"rules": []}, {"rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]}])
@pytest.mark.usefixtures("whole")
def test_a_role_that_somebody_changed_is_told_and_put_back(
    change: dict[str, Any], admin_api: KubeApi, root_api: KubeApi, root: Client
) -> None:
    name = path_of({**rbac_objects()[0], "metadata": {"name": "muster:gate-probe"}})
    before = admin_api.get(name)
    assert root.request("PATCH", name, change, "application/merge-patch+json").status == 200
    with pytest.raises(AssertionError, match="was used"):
        as_wanted(admin_api)
    told = write_objects(rbac_objects(), admin_api, never, apply=False)
    assert told.names == ("ClusterRole/muster:gate-probe",)
    assert told.before["ClusterRole/muster:gate-probe"]["rules"] == (change["rules"] or None)
    assert admin_api.get(name)["rules"] != before["rules"], "to look changes nothing"
    done = write_objects(rbac_objects(), admin_api, lambda: root_api, apply=True)
    assert done.names == told.names
    assert admin_api.get(name)["rules"] == before["rules"]
    as_wanted(admin_api)


@pytest.mark.usefixtures("whole")
def test_before_anybody_has_rights_the_second_identity_reads_and_writes(
    server: Server, root_api: KubeApi, root: Client
) -> None:
    nobody = KubeApi(server.kubeconfig("somebody"))
    with pytest.raises(AssertionError, match="was used"):
        as_wanted(nobody)
    assert root.request("DELETE", ROLE).status == 200
    assert write_objects(rbac_objects(), nobody, lambda: root_api, apply=True).names == ("ClusterRole/muster:admin",)


def test_a_binding_that_names_another_role_is_refused_with_what_the_api_server_says(
    admin_api: KubeApi, root_api: KubeApi
) -> None:
    binding = next(copy.deepcopy(item) for item in rbac_objects() if item["kind"] == "ClusterRoleBinding")
    binding["roleRef"]["name"] = "view"
    with pytest.raises((Conflict, ApiError), match="cannot change roleRef"):
        write_objects([binding], admin_api, lambda: root_api, apply=True)


def test_an_answer_that_lacks_what_was_written_is_an_error(admin_api: KubeApi, root_api: KubeApi) -> None:
    role = {**rbac_objects()[0], "metadata": {"name": "muster:nothing"}, "rulez": ["x"]}
    with pytest.raises((Conflict, ApiError), match="rulez"):
        write_objects([role], admin_api, lambda: root_api, apply=True)


def test_a_kind_that_nobody_has_described_is_refused(admin_api: KubeApi) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "default"}}
    with pytest.raises(ApiError, match="Pod x: the kinds that can be written are ClusterRole"):
        write_objects([pod], admin_api, never, apply=True)
