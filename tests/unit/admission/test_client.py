"""The API client: retries, errors, kubeconfig."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import yaml

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound, node_path
from gpu_burnin.admission.service.leader import LEASES
from tests.support.admission_helpers import make_node
from tests.support.fake_api import FakeApi, Refused, refusing


def test_an_overloaded_server_is_asked_again(api: FakeApi, kube: KubeApi) -> None:
    answers = [Refused(429, "later", {"Retry-After": "0"}), Refused(503, "later", {"Retry-After": "0"})]

    def overloaded(path: str) -> None:
        if answers:
            raise answers.pop()

    api.put_node(make_node())
    api.before_write = overloaded
    kube.patch(node_path("gpu-1"), [{"op": "add", "path": "/spec/unschedulable", "value": True}])
    assert len(api.writes()) == 3 and api.nodes["gpu-1"]["spec"]["unschedulable"] is True


@pytest.mark.parametrize("status", [409, 422])
def test_a_conflict_is_the_callers(api: FakeApi, kube: KubeApi, status: int) -> None:
    api.put_node(make_node())
    api.before_write = refusing(status, "the object has been modified")
    with pytest.raises(Conflict, match="modified"):
        kube.patch(node_path("gpu-1"), [{"op": "add", "path": "/spec/x", "value": 1}])
    assert len(api.writes()) == 1


RACE = 'Operation cannot be fulfilled on resourcequotas "muster": the object has been modified'


def test_what_lost_the_servers_own_race_for_a_quota_is_made_again(api: FakeApi, kube: KubeApi) -> None:
    left = [Refused(409, RACE), Refused(409, RACE)]

    def racing(path: str) -> None:
        if left:
            raise left.pop()

    api.before_write = racing
    made = {"metadata": {"name": "x", "namespace": "muster-system"}, "spec": {"holderIdentity": "me"}}
    kube.create(LEASES, made)
    assert len(api.writes()) == 3 and not left


def test_a_quota_that_stays_busy_is_the_callers(api: FakeApi, tmp_path: Path) -> None:
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"), retries=1)
    api.before_write = refusing(409, RACE)
    with pytest.raises(Conflict, match="resourcequotas"):
        kube.create(LEASES, {"metadata": {"name": "x", "namespace": "muster-system"}})
    assert len(api.writes()) == 2


def test_an_answer_may_take_longer_than_a_connection(api: FakeApi, tmp_path: Path) -> None:
    """The first of the two times is for the connection alone: not for the whole request."""
    never = threading.Event()
    api.put_node(make_node())

    def slow(path: str) -> None:
        never.wait(0.3)

    api.before_read = slow
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"), retries=0, timeout_s=(0.1, 30.0))
    assert kube.node("gpu-1") is not None


def test_a_missing_node_is_none(kube: KubeApi) -> None:
    assert kube.node("gpu-9") is None


@pytest.mark.parametrize("content", [None, "", "nonsense", "{}"])
def test_an_unusable_kubeconfig_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "broken.kubeconfig"
    if content is not None:
        path.write_text(content)
    why = "there is no such file" if content is None else ""
    with pytest.raises(ApiError, match=rf"broken\.kubeconfig \({why}"):
        KubeApi(path)


def test_a_kubeconfig_may_be_a_list_or_come_through_a_pipe(api: FakeApi, tmp_path: Path) -> None:
    path = api.kubeconfig(tmp_path / "kubeconfig")
    assert KubeApi(Path(f"{tmp_path / 'none'}:{path}")).server == KubeApi(path).server
    # As the shell gives it for <(command).
    read_end, write_end = os.pipe()
    os.write(write_end, path.read_bytes())
    os.close(write_end)
    assert KubeApi(Path(f"/dev/fd/{read_end}")).server == KubeApi(path).server
    os.close(read_end)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{{{: x", r"it is no YAML: .*, line 1\)"),
        ("current-context: prod\nclusters: []\ncontexts: []\n", "Expected object with name prod"),
    ],
)
def test_why_a_kubeconfig_is_unusable_is_on_one_line(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "broken.kubeconfig"
    path.write_text(content)
    with pytest.raises(ApiError, match=says) as caught:
        KubeApi(path)
    assert "\n" not in str(caught.value)


def test_a_plugin_that_gives_no_credential_is_named_and_nobody_goes_on_without(
    api: FakeApi, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = api.kubeconfig(tmp_path / "cloud.kubeconfig")
    loaded = yaml.safe_load(path.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never"}
    loaded["users"] = [{"name": one["name"], "user": {"exec": plugin}} for one in loaded["users"]]
    path.write_text(yaml.safe_dump(loaded))
    with pytest.raises(ApiError, match=r"cloud\.kubeconfig \(its user's plugin gives no credential: .*no-such-plugin"):
        KubeApi(path)
    assert capfd.readouterr() == ("", "")


def test_a_server_below_a_path_is_asked_there(api: FakeApi, kube: KubeApi, tmp_path: Path) -> None:
    """Some clusters are reached through a proxy that has each under a path of its own."""
    api.put_node(make_node())
    content = api.kubeconfig(tmp_path / "below").read_text()
    server = next(line.split()[-1] for line in content.splitlines() if "server:" in line)
    (tmp_path / "below").write_text(content.replace(server, f"{server}/clusters/one"))
    with pytest.raises(NotFound):
        KubeApi(tmp_path / "below").get("/api/v1/nodes/gpu-1")
    assert api.requests[-1][1].startswith("/clusters/one/api/v1/nodes/gpu-1")


def test_a_document_is_a_kubeconfig_too_and_its_token_is_in_no_error(api: FakeApi, tmp_path: Path) -> None:
    made = yaml.safe_load(api.kubeconfig(tmp_path / "kubeconfig").read_text())
    made["users"][0]["user"] = {"token": "geheim"}
    api.put_node(make_node())
    assert KubeApi(made).node("gpu-1") is not None
    with pytest.raises(ApiError, match=r"^cannot use the kubeconfig \(") as error:
        KubeApi({**made, "current-context": "another"})
    assert "geheim" not in str(error.value)
