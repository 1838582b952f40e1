"""The chains that roles/node_traffic/files/node_traffic.py wants, what it does about a table, its page, its errors."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.preflight.traffic_rules import NAME

from tests.support.series_budget import of_page, too_many

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles" / "node_traffic"
# A chain's name without its end (iptables, XT_EXTENSION_MAXNAMELEN).
LONGEST_NAME = 28


def load() -> ModuleType:
    """The role's program as a module."""
    path = ROLE / "files" / "node_traffic.py"
    spec = importlib.util.spec_from_file_location("node_traffic", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["node_traffic"] = module
    spec.loader.exec_module(module)
    return module


node_traffic = load()
V4, V6 = node_traffic.FAMILIES
CLASSES: dict[str, Any] = {
    "cluster": ["198.18.0.0/15", "2001:DB8:1::/48"],
    "storage": ["10.9.0.0/16"],
    "internet": "rest",
}


def config(classes: Mapping[str, Any] = CLASSES, **changes: Any) -> Any:
    """The configuration of a node."""
    data = {"classes": classes, "pod_interface": "cni0", "textfile": "/x/y.prom", "limits_bits_per_s": {}}
    return node_traffic.parse_config(json.dumps({**data, **changes}), "config.json")


class Kernel:
    """A table as iptables-restore --noflush changes it and iptables-save prints it."""

    def __init__(self) -> None:
        self.chains: dict[str, list[str]] = {"INPUT": [], "FORWARD": ["-s 10.0.0.1/32 -j DROP"], "OUTPUT": []}
        self.counts: dict[tuple[str, str], tuple[int, int]] = {}

    def restore(self, text: str) -> None:
        table, *lines, commit = text.splitlines()
        assert (table, commit) == ("*mangle", "COMMIT")
        for line in lines:
            word, chain, *rest = line.split(" ", 2)
            if line.startswith(":"):
                self._flush(word[1:])
            elif word == "-A":
                self.chains[chain].append("".join(rest))
            elif word == "-I":
                self.chains[chain].insert(0, "".join(rest))
            elif word == "-D":
                self.chains[chain].remove("".join(rest))
            elif word == "-F":
                self._flush(chain)
            else:
                assert word == "-X" and not self.chains.pop(chain)
        # As the kernel, which commits no jump to a chain that is gone.
        for rules in self.chains.values():
            for rule in rules:
                for target in re.findall(r"-[jg] (MUSTER-\S+)", rule):
                    assert target in self.chains

    def _flush(self, chain: str) -> None:
        self.chains[chain] = []
        self.counts = {key: count for key, count in self.counts.items() if key[0] != chain}

    def save(self) -> str:
        lines = [f":{name} - [0:0]" for name in self.chains]
        for name, rules in self.chains.items():
            for rule in rules:
                packets, size = self.counts.get((name, rule), (0, 0))
                lines.append(f"[{packets}:{size}] -A {name} {rule}".rstrip())
        return "\n".join(["# Generated", "*mangle", *lines, "COMMIT", "# Completed", ""])

    def table(self) -> Any:
        return node_traffic.read_table(self.save())

    def bring(self, wanted: Mapping[str, tuple[str, ...]]) -> list[str]:
        changes: list[str] = node_traffic.changes(wanted, self.table())
        self.restore(node_traffic.restore_input(wanted, self.table()))
        return changes


def test_the_chains_of_each_family() -> None:
    v4, v6 = (node_traffic.wanted_chains(config(), family) for family in (V4, V6))
    assert v4["MUSTER-IN"] == (
        "-i lo -j RETURN",
        "-i cni0 -j RETURN",
        "-s 198.18.0.0/15 -g MUSTER-IN-cluster",
        "-s 10.9.0.0/16 -g MUSTER-IN-storage",
        "-g MUSTER-IN-internet",
    )
    assert v6["MUSTER-POD-OUT"] == ("-d 2001:db8:1::/48 -g MUSTER-POD-OUT-cluster", "-g MUSTER-POD-OUT-internet")
    assert v4["MUSTER-POD"][0] == "-i cni0 -o cni0 -j RETURN"
    assert v4["MUSTER-OUT-cluster"] == ("",)


def test_no_rule_has_a_verdict() -> None:
    chains = node_traffic.wanted_chains(config(), V4)
    targets = {word for rules in chains.values() for rule in rules for word in re.findall(r"-[jg] (\S+)", rule)}
    assert targets - set(chains) == {"RETURN"}


def test_the_longest_name_of_a_class_fits_a_chain() -> None:
    name = "a" * 12
    assert NAME.fullmatch(name) and not NAME.fullmatch(name + "a")
    chains = node_traffic.wanted_chains(config({name: ["10.0.0.0/8"], "b": "rest"}), V4)
    assert max(map(len, chains)) <= LONGEST_NAME
    kernel = Kernel()
    kernel.bring(chains)
    assert kernel.bring({})
    assert not [chain for chain in kernel.chains if "MUSTER" in chain]


def test_a_second_run_changes_nothing_and_other_rules_stay() -> None:
    kernel = Kernel()
    wanted = node_traffic.wanted_chains(config(), V4)
    changes = kernel.bring(wanted)
    assert "chain MUSTER-IN-cluster" in changes and "jump from FORWARD to MUSTER-POD" in changes
    assert kernel.chains["FORWARD"] == ["-j MUSTER-POD", "-s 10.0.0.1/32 -j DROP"]
    assert kernel.bring(wanted) == []
    assert kernel.bring({})
    assert kernel.chains == Kernel().chains


def test_counters_of_a_class_that_stays_are_not_touched() -> None:
    kernel = Kernel()
    kernel.bring(node_traffic.wanted_chains(config(), V4))
    kernel.counts = {("MUSTER-IN-cluster", ""): (7, 900), ("MUSTER-IN-internet", ""): (1, 40)}
    other = {"cluster": ["198.18.0.0/16"], "new": ["198.19.0.0/16"], "world": "rest"}
    changes = kernel.bring(node_traffic.wanted_chains(config(other), V4))
    assert {"chain MUSTER-IN", "chain MUSTER-IN-new", "chain MUSTER-IN-internet goes"} <= set(changes)
    assert "chain MUSTER-IN-cluster" not in changes
    assert kernel.counts == {("MUSTER-IN-cluster", ""): (7, 900)}


@pytest.mark.parametrize(
    ("chain", "rules", "said"),
    [
        ("INPUT", ["-j MUSTER-IN", "-p tcp -j X", "-j MUSTER-IN"], ["jump from INPUT to MUSTER-IN"]),
        ("OUTPUT", [], ["jump from OUTPUT to MUSTER-OUT"]),
        ("MUSTER-IN-cluster", [], ["chain MUSTER-IN-cluster"]),
        ("MUSTER-POD-IN-old", [""], ["chain MUSTER-POD-IN-old goes"]),
        ("MUSTER-OTHER", ["-j ACCEPT"], []),
    ],
)
def test_what_others_did_is_named_and_mended(chain: str, rules: list[str], said: list[str]) -> None:
    kernel = Kernel()
    wanted = node_traffic.wanted_chains(config(), V4)
    kernel.bring(wanted)
    kernel.chains[chain] = rules
    assert kernel.bring(wanted) == said
    assert kernel.bring(wanted) == []
    assert ("MUSTER-OTHER" in kernel.chains) == (chain == "MUSTER-OTHER")


def test_the_page() -> None:
    kernel = Kernel()
    kernel.bring(node_traffic.wanted_chains(config(), V4))
    kernel.counts = {("MUSTER-POD-OUT-storage", ""): (3, 5 << 40)}
    page = node_traffic.page(config(limits_bits_per_s={"internet": "10e9"}), {V4: kernel.table()})
    labels = '{class="storage",direction="out",path="pods",family="ipv4"}'
    assert f"\nmuster_node_traffic_bytes_total{labels} {5 << 40}\n" in page
    assert f"\nmuster_node_traffic_packets_total{labels} 3\n" in page
    assert page.endswith('\nmuster_node_traffic_limit_bits_per_second{class="internet"} 10000000000.0\n')
    assert of_page(page.encode())["muster_node_traffic_bytes_total"] == 12
    assert "limit" not in node_traffic.page(config(), {V4: kernel.table()})


def test_four_classes_show_no_more_series_than_are_declared() -> None:
    classes = {"a": ["10.0.0.0/8"], "b": ["fd00::/8"], "c": ["11.0.0.0/8"], "d": "rest"}
    settings, kernel = config(classes, limits_bits_per_s=dict.fromkeys(classes, 1e9)), Kernel()
    kernel.bring(node_traffic.wanted_chains(settings, V4))
    page = node_traffic.page(settings, dict.fromkeys(node_traffic.FAMILIES, kernel.table()))
    assert too_many("node", of_page(page.encode())) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"classes": {"a": "rest", "b": "rest"}}, "too many values"),
        ({"classes": {"a": ["10.0.0.1/8"], "b": "rest"}}, "10.0.0.1/8 has host bits set"),
        ({"limits_bits_per_s": {"a": "much"}}, "could not convert string to float"),
    ],
)
def test_a_wrong_configuration_names_its_file(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(node_traffic.TrafficError, match=rf"^config\.json: .*{says}.*; correct fleet_traffic"):
        config(**changes)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(node_traffic.TrafficError, match=r"^c\.json: classes is missing; apply the role node_traffic"):
        node_traffic.parse_config("{}", "c.json")


def _tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Kernel]:
    """The node's tools as functions, one table for each family."""
    kernels = {"iptables": Kernel(), "ip6tables": Kernel()}

    def run(command: list[str], stdin: str = "") -> str:
        tool, _, what = command[0].partition("-")
        if what == "save":
            return kernels[tool].save()
        assert command[1:] == ["--wait", "--noflush"]
        kernels[tool].restore(stdin)
        return ""

    monkeypatch.setattr(node_traffic, "run", run)
    monkeypatch.setattr(node_traffic, "_IPV6", tmp_path)
    given = {
        "classes": CLASSES,
        "pod_interface": "cni0",
        "limits_bits_per_s": {},
        "textfile": str(tmp_path / "n/x.prom"),
    }
    (tmp_path / "config.json").write_text(json.dumps(given))
    return kernels


def test_one_run_and_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = _tools(tmp_path, monkeypatch)
    path = str(tmp_path / "config.json")
    assert node_traffic.main([path, "--check"]) == 0
    assert "ipv6: chain MUSTER-IN\n" in capsys.readouterr().out
    assert kernels["iptables"].chains == Kernel().chains
    # Without node_exporter's folder there is nobody to write for.
    assert node_traffic.main([path]) == 0
    assert "ipv4: jump from INPUT to MUSTER-IN\n" in capsys.readouterr().out
    (tmp_path / "n").mkdir()
    assert node_traffic.main([path]) == 0
    assert capsys.readouterr().out == ""
    assert 'family="ipv6"' in (tmp_path / "n/x.prom").read_text()
    assert (tmp_path / "n/x.prom").stat().st_mode & 0o777 == 0o644
    assert node_traffic.main([path, "--remove"]) == 0
    assert kernels["ip6tables"].chains == Kernel().chains


def test_a_kernel_without_ipv6_counts_ipv4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = _tools(tmp_path, monkeypatch)
    monkeypatch.setattr(node_traffic, "_IPV6", tmp_path / "none")
    assert node_traffic.main([str(tmp_path / "config.json")]) == 0
    assert kernels["ip6tables"].chains == Kernel().chains
    assert "MUSTER-IN" in kernels["iptables"].chains


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["/bin/false"], "`/bin/false` failed: "),
        (["/nowhere/iptables-save"], "/nowhere/iptables-save is not installed; apply the role node_traffic"),
    ],
)
def test_a_tool_that_fails_is_named(words: list[str], says: str) -> None:
    with pytest.raises(node_traffic.TrafficError, match=re.escape(says)):
        node_traffic.run(words)


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert node_traffic.main([str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err == f"muster-traffic: {tmp_path / 'none.json'}: No such file or directory\n"
    (tmp_path / "bad.json").write_text("[]")
    assert node_traffic.main([str(tmp_path / "bad.json")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("classes", "listed", "pattern"),
    [
        ({}, False, "system_nodes:gpu_nodes:!all"),
        (CLASSES, False, "system_nodes:gpu_nodes"),
        # Nodes that still count, of a fleet that has no class any more.
        ({}, True, "system_nodes:gpu_nodes"),
    ],
)
def test_site_goes_to_no_node_where_nothing_is_to_be_done(
    classes: dict[str, Any], listed: bool, pattern: str, tmp_path: Path
) -> None:
    [play] = [play for play in yaml.safe_load((ROOT / "site.yml").read_text()) if "Count the nodes" in play["name"]]
    [path] = re.findall(r"/([\w.-]+)$", yaml.safe_load((ROLE / "vars/main.yml").read_text())["__node_traffic_list"])
    if listed:
        (tmp_path / path).touch()
    environment = jinja2.Environment()
    environment.tests["ansible.builtin.file"] = lambda name: Path(name).is_file()
    of_first = {"fleet_traffic": classes, "fleet_state_dir": str(tmp_path)}
    found = environment.from_string(play["hosts"]).render(hostvars={"gpu-1": of_first}, groups={"all": ["gpu-1"]})
    assert found == pattern


def test_what_is_written_is_taken_away_again() -> None:
    count, absent = (yaml.safe_load((ROLE / f"tasks/{name}.yml").read_text()) for name in ("count", "absent"))
    service, _ = (task["muster.fleet.service"] for task in count if "muster.fleet.service" in task)
    written = {file["dest"] for file in service["files"]} | {"{{ __node_traffic_textfile }}"}
    gone = {
        f"/etc/systemd/system/{task['muster.fleet.unit']['name']}" for task in absent if "muster.fleet.unit" in task
    }
    [files] = [
        task["muster.fleet.file_set"]["absent"] for task in absent if "file_set" in str(task) and "run_once" not in task
    ]
    gone |= {"/etc/muster-traffic/config.json" if path == "/etc/muster-traffic" else path for path in files}
    assert gone == written
