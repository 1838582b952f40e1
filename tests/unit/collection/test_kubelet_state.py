"""Facts of a host for the kubelet role."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.kube import kubelet_state
from ansible_collections.muster.fleet.plugins.module_utils.kube.health import Server

from tests.support.server_helpers import QuietHandler, listening


@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_server_of_a_kubeconfig(tmp_path: Path, quote: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(f"clusters:\n- cluster:\n    server: {quote}https://198.18.7.41:6443{quote}\n  name: default\n")
    assert kubelet_state.kubeconfig_server(path) == "https://198.18.7.41:6443"


def test_no_kubeconfig_no_server(tmp_path: Path) -> None:
    assert kubelet_state.kubeconfig_server(tmp_path / "none") == ""
    (tmp_path / "empty").write_text("apiVersion: v1\n")
    assert kubelet_state.kubeconfig_server(tmp_path / "empty") == ""


def make_root(root: Path, stub: bool, upstream: bool) -> Path:
    """A root folder with /etc/resolv.conf, as a link to the stub or a file, with or without systemd-resolved."""
    (root / "etc").mkdir()
    (root / "run/systemd/resolve").mkdir(parents=True)
    if stub:
        (root / "etc/resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
    else:
        (root / "etc/resolv.conf").write_text("nameserver 192.0.2.1\n")
    if upstream:
        (root / "run/systemd/resolve/resolv.conf").write_text("nameserver 192.0.2.1\n")
    return root


@pytest.mark.parametrize(
    ("stub", "upstream", "expected"),
    [
        (True, True, "/run/systemd/resolve/resolv.conf"),
        (True, False, "/etc/resolv.conf"),
        (False, True, "/etc/resolv.conf"),
    ],
)
def test_resolv_conf_behind_the_stub(tmp_path: Path, stub: bool, upstream: bool, expected: str) -> None:
    assert kubelet_state.resolv_conf(make_root(tmp_path, stub, upstream)) == expected


@pytest.mark.parametrize(
    ("content", "stub"),
    [
        ("nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n", True),
        ("# by hand\nnameserver\t127.0.0.54\n", True),
        ("nameserver 127.0.0.53\nnameserver 192.0.2.1\n", False),  # pods have one that answers
        ("search example.com\n", False),
        ("", False),
    ],
)
def test_a_resolv_conf_that_names_the_stub_alone_is_the_stub_whatever_it_is(
    tmp_path: Path, content: str, stub: bool
) -> None:
    """After coredns issue 2087 and kubespray issue 3979: a regular file, which somebody copied or wrote."""
    root = make_root(tmp_path, False, True)
    (root / "etc/resolv.conf").write_text(content)
    found = kubelet_state.resolv_conf(root)
    assert found == ("/run/systemd/resolve/resolv.conf" if stub else "/etc/resolv.conf")


def status_of(name: str, kind: str = "nodes") -> str:
    """A Status as the API server sends it for what is not there."""
    return json.dumps({"kind": "Status", "reason": "NotFound", "code": 404, "details": {"name": name, "kind": kind}})


@pytest.mark.parametrize(
    ("code", "body", "absent"),
    [
        (404, status_of("gpu-1"), True),
        (200, json.dumps({"kind": "Node", "metadata": {"name": "gpu-1"}}), False),
        (404, status_of("gpu-2"), False),
        (404, status_of("gpu-1", "pods"), False),
        (404, "<html>no such page</html>", False),
        (404, "[]", False),
        (403, status_of("gpu-1"), False),
        (503, status_of("gpu-1"), False),
    ],
)
def test_only_the_api_servers_own_404_of_this_node_is_an_absent_node(code: int, body: str, absent: bool) -> None:
    asked = []

    class Api(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.reply(code, body.encode())

    with listening(Api) as url:
        assert kubelet_state.node_absent(Server(url), "gpu-1") is absent
    assert asked == ["/api/v1/nodes/gpu-1"]
    assert kubelet_state.node_absent(Server(url), "gpu-1") is False, "nobody answers there any more"


def test_unusable_certificates_are_no_absence(tmp_path: Path) -> None:
    server = Server("https://127.0.0.1:1", ca=str(tmp_path / "none"))
    assert kubelet_state.node_absent(server, "gpu-1") is False


@pytest.mark.parametrize(
    ("age_s", "absent_for_s", "lost", "waited_s"),
    [
        (3600, None, True, 0),  # long registered, deleted since
        (3600, 0, False, 0),  # there is a Node
        (5, 3, False, 3),  # it was about to register
        (5, None, True, 15),  # it had its time and did not
        (-3600, None, True, 20),  # a clock that was set back
    ],
)
def test_a_young_kubelet_is_given_the_time_to_register(
    age_s: float, absent_for_s: float | None, lost: bool, waited_s: float
) -> None:
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    def absent() -> bool:
        return absent_for_s is None or now < absent_for_s

    assert kubelet_state.will_not_register(absent, age_s, lambda: now, pause) is lost
    assert now == waited_s


@pytest.mark.parametrize(
    ("text", "known"), [("a" * 32 + "\n", "a" * 32), ("", ""), ("uninitialized\n", ""), (None, "")]
)
def test_machine_id_is_one_or_none(tmp_path: Path, text: str | None, known: str) -> None:
    (tmp_path / "etc").mkdir()
    if text is not None:
        (tmp_path / "etc/machine-id").write_text(text)
    assert kubelet_state.machine_id(tmp_path) == known
