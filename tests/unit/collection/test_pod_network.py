"""Routes and rules that roles/pod_network/files/pod_network.py sets, and its errors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load() -> ModuleType:
    """The role's program as a module."""
    path = ROOT / "roles" / "pod_network" / "files" / "pod_network.py"
    spec = importlib.util.spec_from_file_location("pod_network", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pod_network"] = module
    spec.loader.exec_module(module)
    return module


pod_network = load()

DATA: dict[str, Any] = {
    "range": "198.19.61.0/24",
    "cidr": "198.19.0.0/17",
    "bridge": "cni0",
    "protocol": 177,
    "manage_routes": True,
    "routing": "static",
    "masquerade": True,
    "deny_link_local": True,
    "no_masquerade": ["224.0.0.0/4"],
    "ranges": {"gpu-1": "198.19.61.0/24", "gpu-2": "198.19.62.0/24"},
    "addresses": {"gpu-1": "198.18.7.61", "gpu-2": "198.18.7.62"},
}


def config(**changes: Any) -> Any:
    """The configuration of gpu-1."""
    return pod_network.parse_config(json.dumps({**DATA, **changes}), "config.json")


def test_routes_to_all_but_the_own_range() -> None:
    assert pod_network.wanted_routes(config()) == {"198.19.62.0/24": "198.18.7.62"}
    assert pod_network.wanted_routes(config(manage_routes=False)) == {}


def test_batch_changes_only_what_differs() -> None:
    wanted = {"198.19.62.0/24": "198.18.7.62", "198.19.63.0/24": "198.18.7.63"}
    present = {"198.19.62.0/24": "198.18.7.62", "198.19.63.0/24": "198.18.7.99", "198.19.9.0/24": "198.18.7.9"}
    assert pod_network.route_batch(wanted, present, 177) == [
        "route replace 198.19.63.0/24 via 198.18.7.63 proto 177",
        "route del 198.19.9.0/24 proto 177",
    ]
    assert pod_network.route_batch(wanted, wanted, 177) == []


def test_present_routes_of_ip_json() -> None:
    text = '[{"dst":"198.19.62.0/24","gateway":"198.18.7.62","dev":"eth0"},{"dst":"198.19.1.1","gateway":"198.18.7.1"}]'
    assert pod_network.present_routes(text) == {"198.19.62.0/24": "198.18.7.62", "198.19.1.1/32": "198.18.7.1"}
    assert pod_network.present_routes("") == {}


def test_traffic_between_pods_is_not_masqueraded() -> None:
    nat, forward, _ = pod_network.chains(config())
    assert nat.rules == (
        "-A POD-NETWORK ! -s 198.19.61.0/24 -j RETURN",
        "-A POD-NETWORK -d 198.19.0.0/17 -j RETURN",
        "-A POD-NETWORK -d 224.0.0.0/4 -j RETURN",
        "-A POD-NETWORK -j MASQUERADE --random-fully",
    )
    assert forward.parent == "FORWARD"
    assert pod_network.chains(config(masquerade=False))[0].rules == ()


def test_link_local_addresses_are_kept_from_pods_before_any_accept() -> None:
    denied = pod_network.chains(config(bridge="br-pods"))[-1]
    assert (denied.table, denied.parent) == ("mangle", "FORWARD"), "not INPUT: the node's own addresses stay reachable"
    assert denied.rules == ("-A POD-NETWORK-LINK-LOCAL -d 169.254.0.0/16 -i br-pods -j DROP",)
    assert pod_network.chains(config(deny_link_local=False))[-1].rules == ()


def test_restore_input_replaces_the_chain_in_one_step() -> None:
    text = pod_network.restore_input(pod_network.chains(config())[0])
    assert text.startswith("*nat\n:POD-NETWORK - [0:0]\n-A POD-NETWORK")
    assert text.endswith("COMMIT\n")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"range": "198.19.61.0/33"}, "'33' is not a valid netmask"),
        ({"addresses": {"gpu-1": "198.18.7.61"}}, "gpu-2 is missing"),
        ({"addresses": {"gpu-1": "198.18.7.61", "gpu-2": "gpu-2.example.net"}}, "gpu-2.example.net"),
    ],
)
def test_bad_configuration_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(pod_network.PodNetworkError, match=r"^config\.json: ") as caught:
        config(**changes)
    assert said in str(caught.value)


def test_refused_route_names_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], stdin: str = "", may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        refused = "Error: Nexthop has invalid gateway.\nCommand failed -:1\n"
        return subprocess.CompletedProcess(command, 1, "", refused) if "-batch" in command else done(command)

    def done(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "[]", "")

    monkeypatch.setattr(pod_network, "run", run)
    with pytest.raises(pod_network.PodNetworkError, match=r"198\.19\.62\.0/24 via 198\.18\.7\.62.*invalid gateway"):
        pod_network.apply_routes(config(), check=False)
    assert pod_network.apply_routes(config(), check=True) == ["route replace 198.19.62.0/24 via 198.18.7.62 proto 177"]


def test_sysctls_only_where_the_kernel_has_them(tmp_path: Path) -> None:
    (tmp_path / "net/ipv4").mkdir(parents=True)
    forward = tmp_path / "net/ipv4/ip_forward"
    forward.write_text("0\n")
    assert pod_network.apply_sysctls(True, tmp_path) == ["net.ipv4.ip_forward = 1"]
    assert forward.read_text() == "0\n"
    assert pod_network.apply_sysctls(False, tmp_path) == ["net.ipv4.ip_forward = 1"]
    assert pod_network.apply_sysctls(False, tmp_path) == []
    bridge = tmp_path / "net/bridge/bridge-nf-call-iptables"
    bridge.parent.mkdir()
    bridge.write_text("0\n")
    assert pod_network.apply_sysctls(False, tmp_path) == ["net.bridge.bridge-nf-call-iptables = 1"]


def test_missing_configuration_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pod_network.main([str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
