"""First contact as the action does it: the problems of thousands once each, check mode, what is pinned.

Only here: that a failed first contact reads well through each of Ansible's callbacks and result formats.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.preflight.absent_nodes import most_absent
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.plugin_utils.failure import LINES_SHOWN, OF_A_KIND, ProblemsFound, failure
from ansible_collections.muster.fleet.plugins.plugin_utils.first_contact import LIST_NAME, meet, merged_problems

from gpu_burnin.fleet.model import ProbeResult, ProblemCode, Target
from gpu_burnin.fleet.model import Problem as HostProblem
from tests.support.fake_api import FakeApi
from tests.support.site_plays import site_plays
from tests.support.ssh_server import SshServer, StartServer, new_key

DEFAULTS = {"address": None, "port": 22, "user": "root", "identity": None, "fingerprint": None}


def run(
    known_hosts: Path,
    hosts: list[dict[str, Any]],
    *,
    check: bool = False,
    trust: bool = False,
    nodes: Sequence[str] = (),
    share: float = 0.0,
    scaler_kubeconfig: str = "",
) -> dict[str, Any]:
    arguments = {
        "hosts": [{**DEFAULTS, **host} for host in hosts],
        "known_hosts": str(known_hosts),
        "trust_new_hosts": trust,
        "nodes": nodes,
        "max_unreachable_share": share,
        "scaler_kubeconfig": scaler_kubeconfig,
        "domain": "muster.dev",
        "timeout_s": 10.0,
        "threads": 4,
    }
    return meet(arguments, check_mode=check, on_done=lambda hosts: None)


def host(name: str, server: SshServer, identity: Path) -> dict[str, Any]:
    return {"name": name, "address": "127.0.0.1", "port": server.port, "identity": str(identity)}


def message(*arguments: Any) -> list[str]:
    return str(failure("Bad", *arguments).result["msg"]).splitlines()


def test_keys_are_pinned_once_and_check_mode_writes_nothing(
    start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    known, hosts = tmp_path / "known_hosts", [host("node-1", start_server(), identity)]
    would = run(known, hosts, check=True, trust=True)
    assert (would["changed"], would["pinned"], known.exists()) == (True, ["node-1"], False)
    done = run(known, hosts, trust=True)
    assert (done["changed"], done["hosts"][0]["ok"]) == (True, True)
    (tmp_path / LIST_NAME).write_text("what was wrong with an earlier run\n")
    again = run(known, hosts)
    assert (again["changed"], again["pinned"]) == (False, [])
    assert not (tmp_path / LIST_NAME).exists()


def test_all_problems_of_all_hosts_come_in_one_failure_once(
    start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    hosts = [
        host("good", start_server(), identity),
        host("no-login", start_server(allowed=new_key()), identity),
        {"name": "down", "address": "127.0.0.1", "port": 1},
    ]
    with pytest.raises(ProblemsFound) as error:
        run(tmp_path / "k", hosts, trust=True)
    title, *lines = str(error.value.result["msg"]).splitlines()
    assert title == "2 of 3 hosts cannot be used over SSH: 2 problems."
    assert [line.partition(":")[0] for line in lines] == ["- no-login", "- down"]
    assert "login as root" in lines[0] and "127.0.0.1 port 1: the TCP connection was refused; start sshd" in lines[1]
    assert error.value.result == {"failed": True, "changed": False, "msg": "\n".join([title, *lines])}
    assert list(tmp_path.glob("*.txt")) == []


def down(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "address": "127.0.0.1", "port": 1} for name in names]


def test_a_node_that_is_off_is_left_out_and_named(start_server: StartServer, identity: Path, tmp_path: Path) -> None:
    hosts = [host("api-1", start_server(), identity), *down("gpu-2")]
    done = run(tmp_path / "k", hosts, trust=True, nodes=["gpu-1", "gpu-2"], share=0.05)
    assert (done["absent"], done["pinned"]) == (["gpu-2"], ["api-1"])
    (line,) = done["left_out"]
    assert line.startswith("gpu-2: 127.0.0.1 port 1: the TCP connection was refused; start sshd on it")


def test_machines_that_are_switched_off_are_left_out_and_no_share_counts_them(tmp_path: Path) -> None:
    api = FakeApi()
    try:
        for name, power in (("gpu-1", "off"), ("gpu-2", "off"), ("gpu-3", "on")):
            wanted = {"power": power, "who": "muster:scaler", "why": "idle", "since": "2026-11-27T12:00:00.000Z"}
            api.put(
                "machinepowers", {"metadata": {"name": name}, "spec": {"wanted": wanted}, "status": {"power": power}}
            )
        nodes, kubeconfig = ["gpu-1", "gpu-2", "gpu-3"], str(api.kubeconfig(tmp_path / "kubeconfig"))
        done = run(tmp_path / "k", down("gpu-1", "gpu-2"), nodes=nodes, share=0.0, scaler_kubeconfig=kubeconfig)
        assert (done["absent"], done["switched_off"]) == (["gpu-1", "gpu-2"], ["gpu-1", "gpu-2"])
        assert done["left_out"] == ["gpu-1, gpu-2: the scaler has switched it off; it comes back when a job needs it"]
        # One that should be on is as silent as any.
        with pytest.raises(ProblemsFound):
            run(tmp_path / "k", down("gpu-3"), nodes=nodes, share=0.0, scaler_kubeconfig=kubeconfig)
    finally:
        api.close()
    done = run(tmp_path / "k", down("gpu-3"), nodes=nodes, share=1.0, scaler_kubeconfig=kubeconfig)
    assert "which machines the scaler has switched off is not known" in done["left_out"][0]


@pytest.mark.parametrize(
    ("off", "share", "expected"),
    [
        (["gpu-1", "gpu-2"], 0.05, "2 of 3 nodes do not answer SSH, and a run goes on without 1 at most"),
        (["gpu-1"], 0.0, "gpu-1: 127.0.0.1 port 1"),  # nobody may be silent
        (["etcd-1"], 1.0, "etcd-1: 127.0.0.1 port 1"),  # no node
    ],
)
def test_too_many_nodes_and_the_control_plane_stop_the_run(
    tmp_path: Path, off: list[str], share: float, expected: str
) -> None:
    with pytest.raises(ProblemsFound) as error:
        run(tmp_path / "k", down(*off), nodes=["gpu-1", "gpu-2", "gpu-3"], share=share)
    assert expected in str(error.value.result["msg"])


def test_what_is_wrong_with_a_node_that_answers_stops_the_run(
    start_server: StartServer, identity: Path, tmp_path: Path
) -> None:
    """Another host key is no silence, nor is a name that does not resolve."""
    server = start_server()
    run(tmp_path / "k", [host("gpu-1", server, identity)], trust=True)
    server_with_another_key = {**host("gpu-1", server, identity), "fingerprint": "SHA256:" + "A" * 43}
    lost = {"name": "gpu-2", "address": "no-such-host.invalid"}
    for wrong, told in ((server_with_another_key, "key"), (lost, "does not resolve")):
        with pytest.raises(ProblemsFound) as error:
            run(tmp_path / "k", [wrong], nodes=["gpu-1", "gpu-2"], share=1.0)
        assert told in str(error.value.result["msg"])


@pytest.mark.parametrize(
    ("nodes", "share", "most"), [(7500, 0.05, 375), (3, 0.05, 1), (3, 0.0, 0), (0, 0.05, 0), (10, 1.0, 10)]
)
def test_how_many_nodes_may_be_silent(nodes: int, share: float, most: int) -> None:
    assert most_absent(nodes, share) == most


def test_a_fleet_that_is_off_is_one_line_and_a_file(tmp_path: Path) -> None:
    hosts = [{"name": f"gpu-{n:04d}", "address": "127.0.0.1", "port": 1} for n in range(1, 301)]
    with pytest.raises(ProblemsFound) as error:
        run(tmp_path / "known_hosts", hosts)
    listed = tmp_path / "first-contact.txt"
    assert str(error.value.result["msg"]).splitlines() == [
        "300 of 300 hosts cannot be used over SSH: 1 problem.",
        "- gpu-0001 to gpu-0300, 300 hosts: the TCP connection was refused; start sshd on it, or correct the port "
        "(ansible_port, --port)",
        f"All of them: {listed}",
    ]
    lines = listed.read_text().splitlines()
    assert len(lines) == 300 and lines[41].startswith("gpu-0042: 127.0.0.1 port 1: the TCP connection was refused; ")
    assert listed.stat().st_mode & 0o777 == 0o600


def test_a_fix_with_the_hosts_own_words_is_shown_for_one_of_them() -> None:
    results = [
        ProbeResult(
            Target(f"n{n}", f"10.0.0.{n}"),
            (HostProblem(ProblemCode.HOST_KEY_CHANGED, f"n{n}: changed", f"forget 10.0.0.{n}", "another key"),),
        )
        for n in range(1, 6)
    ]
    told, every = merged_problems(results)
    assert [problem.line() for problem in told] == ["n1 to n5, 5 hosts: another key; for n1: forget 10.0.0.1"]
    assert every[4] == "n5: changed; forget 10.0.0.5"
    few, nothing = merged_problems(results[:4])
    assert [problem.line() for problem in few] == [f"n{n}: changed; forget 10.0.0.{n}" for n in range(1, 5)]
    assert nothing == []


def test_many_different_problems_fill_no_screen_and_hide_no_other_kind(tmp_path: Path) -> None:
    problems = [Problem(f"wrong {n}", "mend it", (f"gpu-{n}",)) for n in range(1000)]
    problems += [Problem("is off", "switch it on", ("lb-1",))]
    listed = tmp_path / "state" / "list.txt"
    assert message(problems, listed) == [
        "Bad: 1,001 problems.",
        *(f"- gpu-{n}: wrong {n}; mend it" for n in range(OF_A_KIND)),
        "- and 997 more like these",
        "- lb-1: is off; switch it on",
        f"All of them: {listed}",
    ]
    assert listed.read_text().splitlines()[999] == "gpu-999: wrong 999; mend it"
    kinds = [Problem("is wrong", f"mend {n}", (f"gpu-{n}",)) for n in range(1000)]
    found = message(kinds, listed)
    assert len(found) == LINES_SHOWN + 3 and found[-2] == f"- and {1000 - LINES_SHOWN} more problems"
    assert message(kinds[:1], listed) == ["Bad: 1 problem.", "- gpu-0: is wrong; mend 0"] and not listed.exists()


def test_nothing_is_left_out_where_no_list_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problems = [Problem(f"wrong {n}", "mend it", (f"gpu-{n}",)) for n in range(1000)]
    for place in (None, tmp_path / "file" / "list.txt"):
        assert len(message(problems, place)) == 1001


@pytest.mark.parametrize(("count", "listed"), [(20, False), (60, True)])
def test_names_that_make_no_runs_are_all_in_the_list_when_they_are_many(
    tmp_path: Path, count: int, listed: bool
) -> None:
    names = tuple(f"gpu-{2 * n}" for n in range(count))
    found = message([Problem("is wrong", "mend it", names)], tmp_path / "list.txt")
    assert found[1] == f"- gpu-0, gpu-2, gpu-4 and {count - 3} more hosts: is wrong; mend it"
    assert (len(found) == 3) is (tmp_path / "list.txt").exists() is listed
    if listed:
        assert (tmp_path / "list.txt").read_text() == f"{', '.join(names)}: is wrong; mend it\n"


def test_a_broken_known_hosts_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("nonsense\n")
    with pytest.raises(FleetError, match="k line 1"):
        run(tmp_path / "k", [{"name": "a"}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "callback"),
    [("yaml", "default"), ("yaml", "ansible.builtin.default"), ("json", "ansible.builtin.default")],
)
def test_the_play_tells_each_problem_once_to_read(
    tmp_path: Path,
    ansible_playbook: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    callback: str,
) -> None:
    monkeypatch.setenv("ANSIBLE_CALLBACK_RESULT_FORMAT", form)
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", callback)
    hosts = "\n".join(f"          - {{name: gpu-{n:02d}, address: 127.0.0.1, port: 1}}" for n in range(1, 31))
    (tmp_path / "site.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - muster.fleet.ssh_probe:\n"
        f"        known_hosts: {tmp_path}/state/known_hosts\n        hosts:\n{hosts}\n"
    )
    done = ansible_playbook("site.yml", "--check")
    assert done.returncode == 2
    # Results in JSON are one line, for programs; what people read is the error before it.
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if not line.startswith("fatal: ")]
    assert len([line for line in said if line.startswith("- gpu-01 to gpu-30, 30 hosts: the TCP connection was")]) == 1
    assert said.count(f"All of them: {tmp_path}/state/first-contact.txt") == 1
    assert not any("127.0.0.1" in line or "gpu-17" in line for line in said)


@pytest.mark.slow
def test_a_limit_dials_its_own_hosts_alone_and_compares_the_pinned_keys_of_all(
    start_server: StartServer,
    identity: Path,
    tmp_path: Path,
    ansible_playbook: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    shared = new_key()
    servers = {"gpu-1": start_server(shared), "gpu-2": start_server(), "gpu-3": start_server(shared)}
    hosts = {
        name: {"ansible_host": "127.0.0.1", "ansible_port": server.port, "ansible_ssh_private_key_file": str(identity)}
        for name, server in servers.items()
    }
    variables = {"fleet_known_hosts": str(tmp_path / "known_hosts"), "fleet_trust_new_hosts": True}
    variables |= {"fleet_max_unreachable_share": 0, "fleet_scale": False, "fleet_domain": "muster.dev"}
    groups = {"gpu_nodes": {"hosts": hosts}}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"children": groups, "vars": variables}}))
    (contact,) = (
        task for play in site_plays() for task in play.get("tasks", ()) if task["name"] == "Meet every host over SSH"
    )
    (tmp_path / "site.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [contact]}]))

    def dialled(limit: str) -> tuple[set[str], str]:
        for server in servers.values():
            server.drop()
        done = ansible_playbook("site.yml", "-l", limit, inventory="hosts.json")
        return {name for name, server in servers.items() if server.transports}, done.stdout + done.stderr

    assert dialled("localhost")[0] == set()
    names, said = dialled("gpu-1,localhost")
    assert names == {"gpu-1"} and "failed=0" in said
    assert dialled("gpu_nodes,!gpu-3,localhost")[0] == {"gpu-1", "gpu-2"}
    names, said = dialled("gpu-3,localhost")
    assert names == {"gpu-3"} and "failed=1" in said
    assert f"is also that of gpu-1 ([127.0.0.1]:{servers['gpu-1'].port})" in " ".join(said.split())
