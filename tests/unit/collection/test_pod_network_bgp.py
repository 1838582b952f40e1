"""What role pod_network renders for routes by BGP, and what its program decides.

Only here: that no file of a node grows with the fleet. With real BIRD: tests/integration/test_pod_network_bgp.py.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.plan.places import ROUTE_BYTES
from tests.support.pod_routes import BIRD, ROLE, rendered


def load() -> ModuleType:
    """The role's program as a module."""
    spec = importlib.util.spec_from_file_location("pod_network_bgp", ROLE / "files/pod_network_bgp.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pod_network_bgp"] = module
    spec.loader.exec_module(module)
    return module


bgp = load()

PEERS = {"peer_10.20.9.1": "10.20.9.1", "reflector_10.20.0.2": "10.20.0.2"}
DATA: dict[str, Any] = {
    "protocol": 177,
    "bgp": {"host": "gpu-1", "peers": PEERS, "is_reflector": False, "wait_s": 0, "textfile": "/nowhere/bgp.prom"},
}
SHOWN = """BIRD 2.0.12 ready.
Access restricted
Name       Proto      Table      State  Since         Info
device1    Device     ---        up     05:06:56.968  
own        Static     master4    up     05:06:56.968  
nodes1     BGP        ---        start  05:06:56.968  Passive       
peer_10.20.9.1 BGP        ---        start  05:06:57.788  Active        Socket: Connection refused
reflector_10.20.0.2 BGP        ---        up     05:06:57.788  Established   
node1x1    BGP        ---        up     05:06:57.754  Established   
"""  # noqa: W291
ROUTES = bgp.Routes(frozenset({"10.64.1.0/24", "10.64.2.0/24"}), frozenset({"10.64.2.0/24", "10.64.3.0/24"}))


def config(**changes: Any) -> Any:
    """The configuration of gpu-1."""
    return bgp.parse_config(json.dumps({**DATA, "bgp": {**DATA["bgp"], **changes}}), "config.json")


class Kernel:
    """Answers as `ip` and `birdc` do, the first of each list the first time and the last one for good."""

    def __init__(self, static: Sequence[str], learnt: Sequence[list[str]], shown: Sequence[str]) -> None:
        self.static, self.learnt, self.shown = list(static), list(learnt), list(shown)
        self.batches: list[str] = []
        self.table: Any = None
        # What an earlier daemon left in the kernel.
        self.stale: list[str] = []

    def run(self, command: Sequence[str], stdin: str = "") -> str:
        """In the place of the program's own."""
        if command[:4] == ["birdc", "-r", "show", "route"]:
            return "Table master4:\n" + "".join(
                f"{one} unicast [x] * (100) [i]\n\tvia 10.20.0.9 on eth0\n" for one in self.table
            )
        if command[0] == "birdc":
            return str(self._next(self.shown))
        if stdin:
            self.batches.append(stdin)
            return ""
        if "12" not in command:
            return json.dumps([{"dst": one} for one in self.static])
        self.table = self._next(self.learnt) if self.table is None or not self.stale else self.table
        return json.dumps([{"dst": one, "gateway": "10.20.0.9"} for one in (self.stale or self.table)])

    @staticmethod
    def _next(answers: list[Any]) -> Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Made by a test; nothing waits."""

    def make(static: Sequence[str], learnt: Sequence[list[str]], shown: Sequence[str] = (SHOWN,)) -> Kernel:
        made = Kernel(static, learnt, shown)
        monkeypatch.setattr(bgp, "run", made.run)
        monkeypatch.setattr(bgp, "LOOK_S", 0)
        return made

    return make


def test_sessions_are_those_with_routes_and_those_without() -> None:
    found = {session.name: session.is_up for session in bgp.sessions_of(SHOWN)}
    assert found == {"peer_10.20.9.1": False, "reflector_10.20.0.2": True, "node1x1": True}


def test_only_what_is_learnt_is_taken_away() -> None:
    assert (ROUTES.spare, ROUTES.left) == ({"10.64.2.0/24"}, {"10.64.1.0/24"})


def test_the_first_look_is_enough_where_nothing_was_started(kernel: Any) -> None:
    host = kernel(["10.64.1.0/24", "10.64.2.0/24"], [["10.64.2.0/24"]])
    assert bgp.wait(config(), whole=False, check=True) == ["route del 10.64.2.0/24 proto 177"]
    assert host.batches == []
    assert bgp.wait(config(), whole=False, check=False) == ["route del 10.64.2.0/24 proto 177"]
    assert host.batches == ["route del 10.64.2.0/24 proto 177\n"]


def test_a_started_daemon_is_given_time_to_learn_all(kernel: Any) -> None:
    host = kernel(["10.64.1.0/24"], [[], [], ["10.64.1.0/24"]])
    assert bgp.wait(config(wait_s=60), whole=True, check=False) == ["route del 10.64.1.0/24 proto 177"]
    assert len(host.learnt) == 1


def test_what_nobody_announces_stays_and_is_named(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    static = [f"10.64.{number}.0/24" for number in (10, 9, 8, 7, 6)]
    host = kernel(static, [["10.64.6.0/24"]])
    assert bgp.wait(config(), whole=True, check=False) == ["route del 10.64.6.0/24 proto 177"]
    assert host.batches == ["route del 10.64.6.0/24 proto 177\n"]
    told = "static routes stay until their nodes announce them: 10.64.7.0/24, 10.64.8.0/24, 10.64.9.0/24 and 1 more\n"
    assert capsys.readouterr().err == told


def test_without_a_session_nothing_is_taken_away_and_each_peer_is_named(kernel: Any) -> None:
    host = kernel(["10.64.2.0/24"], [["10.64.2.0/24"]], [SHOWN.replace("Established", "Connect    ")])
    told = (
        r"^gpu-1: no BGP session within 0 s with 10\.20\.9\.1 \(Active +Socket: Connection refused\), "
        r"10\.20\.0\.2 \(Connect\); see that the peer runs .*pod_network_bgp_password.*179/tcp"
    )
    with pytest.raises(bgp.BgpError, match=told):
        bgp.wait(config(), whole=False, check=False)
    assert host.batches == []


def test_a_silent_daemon_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Sequence[str], stdin: str = "") -> str:
        if command[0] == "birdc":
            raise bgp.BgpError("no socket")
        return "[]"

    monkeypatch.setattr(bgp, "run", run)
    for is_reflector in (True, False):
        with pytest.raises(bgp.BgpError, match=r"^gpu-1: bird\.service does not answer \(no socket\); look at"):
            bgp.wait(config(is_reflector=is_reflector), whole=False, check=False)


def test_a_reflector_waits_for_nobody(kernel: Any) -> None:
    kernel([], [[]], [SHOWN.replace("Established", "Connect    ")])
    assert bgp.wait(config(is_reflector=True), whole=False, check=False) == []


def test_the_end_takes_away_what_was_learnt(kernel: Any) -> None:
    host = kernel([], [["10.64.1.0/24", "10.64.2.0/24"]])
    assert bgp.end(check=True) == ["2 learnt routes"] and host.batches == []
    assert bgp.end(check=False) == ["2 learnt routes"]
    lines = host.batches[0].splitlines()
    assert sorted(lines) == [f"route del 10.64.{number}.0/24 proto 12 metric 32" for number in (1, 2)]
    kernel([], [[]])
    assert bgp.end(check=False) == []


def values(shown: str) -> dict[str, str]:
    """The numbers of a page, by their names without what they begin with."""
    lines = (line.split() for line in shown.splitlines() if not line.startswith("#"))
    return {name.removeprefix("muster_pod_network_bgp_"): value for name, value in lines}


def test_numbers_of_peers_sessions_and_routes() -> None:
    assert values(bgp.page(config(), bgp.sessions_of(SHOWN), ROUTES, 1.7e9, "")) == {
        "peers": "2", "peers_established": "1", "sessions_established": "2", "routes": "2", "static_routes": "2",
        "session_timestamp_seconds": "1700000000",
    }  # fmt: skip


def test_the_time_of_the_last_session_stays_until_there_is_another() -> None:
    first = bgp.page(config(), bgp.sessions_of(SHOWN), ROUTES, 1.7e9, "")
    for before, wanted in (
        (first, "1700000000"),
        (bgp.page(config(), [], ROUTES, 1.8e9, first), "1700000000"),
        ("", "0"),
    ):
        assert values(bgp.page(config(), [], ROUTES, 1.9e9, before))["session_timestamp_seconds"] == wanted
    assert (
        values(bgp.page(config(), bgp.sessions_of(SHOWN), ROUTES, 2e9, first))["session_timestamp_seconds"]
        == "2000000000"
    )


@pytest.mark.parametrize(("kept", "again"), [(["10.64.1.0/24"], True), ([], False)])
def test_after_a_boot_it_waits_for_no_peer(
    kernel: Any, monkeypatch: pytest.MonkeyPatch, kept: list[str], again: bool
) -> None:
    host = kernel([], [kept])
    started: list[list[str]] = []
    monkeypatch.setattr(bgp.os, "execv", lambda path, words: started.append(words))
    bgp.become_daemon(config())
    assert ("-R" in started[0]) is again
    # What was learnt before is static until it is learnt again.
    assert host.batches == [f"route replace {one} via 10.20.0.9 proto 177\n" for one in kept]


def test_two_ways_of_a_route_are_kept() -> None:
    shown = [
        {"dst": "10.64.1.0/24", "nexthops": [{"gateway": "10.20.9.1"}, {"gateway": "10.20.9.2"}]},
        {"dst": "10.64.2.0/24", "type": "blackhole"},
    ]
    line = "route replace 10.64.1.0/24 nexthop via 10.20.9.1 nexthop via 10.20.9.2 proto 177"
    assert bgp.kept_routes(json.dumps(shown), 177) == [line]
    assert bgp.kept_routes("", 177) == []


def test_routes_that_an_earlier_daemon_left_are_not_learnt(kernel: Any) -> None:
    host = kernel(["10.64.1.0/24", "10.64.2.0/24"], [["10.64.2.0/24"]])
    host.stale = ["10.64.1.0/24", "10.64.2.0/24"]
    assert bgp.wait(config(), whole=False, check=False) == ["route del 10.64.2.0/24 proto 177"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "config.json: bgp is missing; apply the role pod_network again"),
        ("[", "config.json: Expecting value"),
        (json.dumps({"protocol": 177, "bgp": {**DATA["bgp"], "peers": {"x": "leaf-1"}}}), "config.json: .*'leaf-1'"),
    ],
)
def test_bad_configuration_is_one_sentence(text: str, told: str) -> None:
    with pytest.raises(bgp.BgpError, match=told):
        bgp.parse_config(text, "config.json")


def test_missing_configuration_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bgp.main(["wait", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err == f"pod-network-bgp: {tmp_path / 'none.json'}: No such file or directory\n"


def fleet(nodes: int) -> dict[str, tuple[str, str]]:
    """So many nodes: {name: (address, range)}."""
    return {
        f"gpu-{n:04d}": (f"10.20.{n // 250}.{n % 250 + 1}", f"10.{64 + n // 256}.{n % 256}.0/24") for n in range(nodes)
    }


LARGE = {"fleet_pod_cidr": "10.64.0.0/10", "pod_network_bgp_nodes": ["10.20.0.0/16"]}
REFLECTED = {**LARGE, "pod_network_bgp_reflectors": ["gpu-0000", "gpu-0001"]}
LEAVES = {**LARGE, "pod_network_bgp_peers": [{"address": "10.20.255.1", "asn": 64601}]}


def files(nodes: int, host: str, **variables: Any) -> dict[str, str]:
    """Everything that the role writes on the host and makes of variables."""
    known = fleet(nodes)
    shown = {name: rendered(text, host, known, **variables) for name, text in {
        "bird.conf": BIRD,
        "config.json": "{{ __pod_network_config }}",
        "conflist": "{{ __pod_network_conflist }}",
        "files": "{{ (__pod_network_file_set + __pod_network_bgp_file_set) | map(attribute='dest') | list }}",
    }.items()}  # fmt: skip
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in shown.items()}


@pytest.mark.slow
@pytest.mark.parametrize("host", ["gpu-0000", "gpu-0005"])
@pytest.mark.parametrize("variables", [REFLECTED, LEAVES])
def test_the_files_of_a_node_do_not_grow_with_the_fleet(host: str, variables: dict[str, Any]) -> None:
    """So a hundred new nodes change no file of another, and none of a reflector."""
    small, middle, large = (files(nodes, host, **variables) for nodes in (10, 250, 7500))
    assert small == middle == large
    # A node that is not of this fleet is named by nothing: what stands there is the node's own and its peers'.
    assert "10.64.7.0" not in str(large) and "10.20.0.8" not in str(large)


def static_bytes(nodes: int) -> int:
    """The file of a node with static routes to so many."""
    known = fleet(nodes)
    collected = {
        "__pod_network_ranges": {name: range_ for name, (_, range_) in known.items()},
        "__pod_network_addresses": {name: address for name, (address, _) in known.items()},
    }
    text = "{{ __pod_network_config | to_nice_json }}"
    return len(rendered(text, "gpu-0005", known, **LARGE, **collected, pod_network_routing="static"))


def test_with_static_routes_they_do_by_what_the_plan_says() -> None:
    """The test above would notice it."""
    few, many = static_bytes(100), static_bytes(7500)
    assert (many - few) / 7400 == pytest.approx(ROUTE_BYTES, rel=0.02)


def test_where_routers_know_the_ranges_no_node_lists_them() -> None:
    variables = {**LARGE, "pod_network_routing": "static", "pod_network_manage_routes": False}
    assert rendered("{{ __pod_network_config.ranges }}", "gpu-0005", fleet(10), **variables) == {}


def test_every_session_has_limits_filters_and_no_default_route() -> None:
    for host, variables in (("gpu-0000", REFLECTED), ("gpu-0005", REFLECTED), ("gpu-0005", LEAVES)):
        text = files(10, host, **variables)["bird.conf"]
        sessions = re.findall(r"^protocol bgp (?:.|\n)*?^}", text, flags=re.MULTILINE)
        assert sessions
        for session in sessions:
            assert re.search(r"import filter of_(node|reflector|peer);\n +import limit \d+ action block;", session)
            assert "ttl security;" in session and "import all" not in session
        for filter_ in re.findall(r"^filter of_(?:.|\n)*?^}", text, flags=re.MULTILINE):
            assert filter_.splitlines()[1] == "  if ! is_range_of_another() then reject;"
            assert "bgp_next_hop" in filter_
        # Only a reflector passes on what it has heard.
        assert ("export all" in text) == (host == "gpu-0000")


def test_a_peer_may_be_without_ttl_security_and_of_the_same_system() -> None:
    peers = [{"address": "10.20.255.1", "asn": 64512, "ttl_security": False}]
    text = files(10, "gpu-0005", **{**LEAVES, "pod_network_bgp_peers": peers})["bird.conf"]
    assert "ttl security" not in text and "allow local as" not in text and "neighbor 10.20.255.1 as 64512;" in text


@pytest.mark.parametrize(("password", "stands"), [("sesame", True), ("", False)])
def test_the_password_is_in_one_file_that_root_and_bird_alone_read(password: str, stands: bool) -> None:
    written = files(10, "gpu-0005", **REFLECTED, pod_network_bgp_password=password)
    assert ('password "sesame";' in written["bird.conf"]) is stands
    assert "sesame" not in written["config.json"]
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    (entry,) = (one for one in variables["__pod_network_bgp_file_set"] if one["dest"] == "/etc/bird/bird.conf")
    assert (entry["mode"], entry["group"], entry["sensitive"]) == ("0640", "bird", True)


@pytest.mark.parametrize(("hosts", "whole"), [(10, True), (9, False)])
def test_bgp_ends_in_a_run_of_all_nodes_alone(hosts: int, whole: bool) -> None:
    played = [f"gpu-{number:04d}" for number in range(hosts)]
    expression = "{{ __pod_network_is_run_of_all }}"
    assert rendered(expression, "gpu-0000", fleet(10), ansible_play_hosts_all=played) is whole
