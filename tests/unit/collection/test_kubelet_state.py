"""Facts of a host for the kubelet role."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils import kubelet_state


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
