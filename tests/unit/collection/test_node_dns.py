"""Rules and address that roles/node_dns/files/node_dns.py sets, and its errors. The integration test has the kernel."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.support.site_plays import roles_of, site_plays

ROOT = Path(__file__).resolve().parents[3]


def load() -> ModuleType:
    """The role's program as a module."""
    path = ROOT / "roles" / "node_dns" / "files" / "node_dns.py"
    spec = importlib.util.spec_from_file_location("node_dns", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["node_dns"] = module
    spec.loader.exec_module(module)
    return module


node_dns = load()
DATA: dict[str, Any] = {
    "address": "169.254.20.10",
    "pods": "198.19.61.0/24",
    "servers": ["198.18.7.32", "2001:db8::31", "198.18.7.31"],
    "max_qps": 1000,
}


def config(**changes: Any) -> Any:
    return node_dns.parse_config(json.dumps({**DATA, **changes}), "config.json")


def test_every_way_to_a_name_is_under_one_limit() -> None:
    rules = node_dns.limit_chain(config()).rules
    assert rules[0] == "-A NODE-DNS-LIMIT ! -s 198.19.61.0/24 -d 169.254.20.10/32 ! -i lo -j DROP"
    limited = [
        rule.split(" -m hashlimit")[0].removeprefix("-A NODE-DNS-LIMIT -s 198.19.61.0/24 ") for rule in rules[1:]
    ]
    assert limited == [
        "-d 169.254.20.10/32",
        "-d 198.18.7.32/32 -p udp -m udp --dport 53",
        "-d 198.18.7.32/32 -p tcp -m tcp --dport 53",
        "-d 198.18.7.31/32 -p udp -m udp --dport 53",
        "-d 198.18.7.31/32 -p tcp -m tcp --dport 53",
    ]
    assert len({rule.partition(" -m hashlimit")[2] for rule in rules[1:]}) == 1


def test_rules_never_accept_so_that_policies_hold() -> None:
    chains = (node_dns.limit_chain(config()), node_dns.fallback_chain(config()))
    assert {rule.split(" -j ")[1].split()[0] for chain in chains for rule in chain.rules} == {"DROP", "RETURN", "DNAT"}


@pytest.mark.parametrize(("max_qps", "kept"), [(1000, 1000), (1500, 1501), (3000, 3003), (1, 1), (100_000, 100_000)])
def test_a_rate_is_written_as_the_kernel_keeps_it(max_qps: int, kept: int) -> None:
    """What iptables then prints is what was asked for, and a second run changes nothing."""
    rule = node_dns.limit_chain(config(max_qps=max_qps)).rules[1]
    assert f"--hashlimit-above {kept}/sec --hashlimit-burst {2 * max_qps} " in rule
    # A table of the kernel keeps the limit that it began with.
    assert f"--hashlimit-name node-dns-{max_qps} " in rule


def test_the_way_round_is_the_first_server_that_pods_can_reach() -> None:
    rules = node_dns.fallback_chain(config(servers=["2001:db8::31", "198.18.7.31"])).rules
    assert rules[:2] == (
        "-A NODE-DNS-FALLBACK -d 169.254.20.10/32 -p udp -m udp --dport 53 -m socket -j RETURN",
        "-A NODE-DNS-FALLBACK -d 169.254.20.10/32 -p udp -m udp --dport 53 -j DNAT --to-destination 198.18.7.31",
    )
    assert len(rules) == 4
    alone = node_dns.fallback_chain(config(servers=["2001:db8::31"])).rules
    assert [rule.split()[-1] for rule in alone] == ["RETURN", "RETURN"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "config.json: "),
        ("[]", "config.json: .*correct the inventory"),
        (json.dumps({**DATA, "address": "fe80::1"}), "config.json: .*fe80::1"),
        (json.dumps({**DATA, "max_qps": 0}), "node_dns_max_qps is 0, which is not from 1 to 100000"),
        (json.dumps({**DATA, "max_qps": 100_001}), "node_dns_max_qps is 100001"),
        (json.dumps({key: value for key, value in DATA.items() if key != "pods"}), "config.json: pods is missing"),
    ],
)
def test_a_bad_configuration_is_told_with_file_and_key(text: str, told: str) -> None:
    with pytest.raises(node_dns.NodeDnsError, match=told):
        node_dns.parse_config(text, "config.json")


@pytest.mark.parametrize(
    ("result", "removed"), [("success", True), ("signal", False), ("exit-code", False), ("", False)]
)
def test_a_process_that_died_leaves_the_address(monkeypatch: pytest.MonkeyPatch, result: str, removed: bool) -> None:
    ran: list[str] = []

    def run(command: list[str], stdin: str = "", may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        ran.extend(command[1:3])
        shown = [{"addr_info": [{"local": "127.0.0.1"}, {"local": "169.254.20.10"}]}]
        return subprocess.CompletedProcess(command, 0, json.dumps(shown), "")

    monkeypatch.setattr(node_dns, "run", run)
    monkeypatch.setenv("SERVICE_RESULT", result)
    assert node_dns.stop(config(), check=False) == (["address 169.254.20.10 off lo"] if removed else [])
    assert ("delete" in ran) is removed


@pytest.mark.parametrize(
    ("wanted", "facts", "skipped"),
    [
        (True, {"preflight_node_dns": False}, False),
        (True, {}, False),
        (False, {"preflight_node_dns": True}, False),
        (False, {"preflight_node_dns": False}, True),
        (False, {}, True),  # a run without preflight
    ],
)
def test_site_yml_skips_nodes_that_have_none_and_had_none(wanted: bool, facts: dict[str, bool], skipped: bool) -> None:
    (play,) = (play for play in site_plays() if "node_dns" in roles_of(play))
    (skip,) = play["pre_tasks"]
    assert skip["ansible.builtin.meta"] == "end_host"
    templar = Templar(DataLoader(), variables={"fleet_node_dns": wanted, "ansible_facts": facts})
    assert all(templar.template(trust_as_template(f"{{{{ {one} }}}}")) for one in skip["when"]) is skipped


def test_errors_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert node_dns.main(["up", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err == f"node-dns: {tmp_path / 'none.json'}: No such file or directory\n"
