"""A roll whose executor, shard and ansible-playbook are killed, and what it makes of its hosts.

Only here: real processes of Ansible under `muster roll`, which die at each of the three places; on connections of this
machine, with modules that say what those of the same names would.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_burnin.fleet.waves.book import Book
from tests.lab.paths import REPOSITORY
from tests.support.clocks import PATIENCE_S, wait_until

NODES = [f"gpu-{number}" for number in range(1, 9)]
# Nothing listens there.
SILENT = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
# Of which it says what the roles' modules would: how each node stands by this file.
MODULE = """#!{python}
# WANT_JSON
import json, pathlib, re, sys
given = json.loads(pathlib.Path(sys.argv[1]).read_text())
states = json.loads(pathlib.Path("{states}").read_text())
name, host = pathlib.Path(sys.argv[0]).stem.removeprefix("AnsiballZ_"), given.get("host", "")
{body}
"""
GATE = 'print(json.dumps({"gate_open": states.get(host) != "closed", "gate_message": "no PASS", "machine_id": host}))'
BURNIN = (
    'bad = states.get(host) == "fails"\n'
    'print(json.dumps({"verdict": "FAIL" if bad else "PASS", "why": "", "reasons": [{"code": "XID_FATAL"}] * bad}))'
)
ADMISSION = (
    'state = lambda one: "held" if states.get(one) == "not admitted" else "ready"\n'
    'nodes = [{"name": one, "state": state(one), "reasons": [{"code": "BRAKE", "message": "later"}]} '
    "for one in given['nodes']]\n"
    'print(json.dumps({"nodes": nodes, "missing": {}}))'
)
PREFLIGHT = (
    'bad = [one for one, state in states.items() if state == "unfit" and one in given["hosts"]]\n'
    'everyone = "everyone" in states\n'
    'faults = [{"hosts": [one], "message": "no room; make some"} for one in bad]\n'
    'faults += [{"hosts": [], "message": "half are silent"}] * everyone\n'
    'print(json.dumps({"failed": bool(faults), "msg": "faults", "faults": faults}))'
)


class Fleet:
    """A small playbook of the parts that site.yml has, its inventory, and what its tasks did."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.states: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        python = str(Path(sys.executable))
        groups = {"kube_apiserver": {"hosts": {"api-1": {}}}, "gpu_nodes": {"hosts": {name: {} for name in NODES}}}
        shared = {
            "fleet_state_dir": str(folder / "state"),
            "ansible_connection": "local",
            "ansible_python_interpreter": python,
            "gpu_burnin_expect": {"model": "h100"},
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": shared, "children": groups}}))
        (folder / "library").mkdir()
        self.keep_states()
        modules = {"kubelet_state": GATE, "burnin": BURNIN, "node_admission": ADMISSION, "preflight_report": PREFLIGHT}
        for name, body in modules.items():
            text = MODULE.format(python=python, states=folder / "states", body=body)
            (folder / "library" / f"{name}.py").write_text(text)
        self.go()

    def keep_states(self, **states: str) -> None:
        named = {name.replace("_", "-"): state for name, state in states.items()}
        (self.folder / "states").write_text(json.dumps(named))

    def go(self) -> None:
        """From here on nothing waits."""
        (self.folder / "go").touch()

    def halt(self) -> None:
        """Each node waits in the middle of its shard."""
        (self.folder / "go").unlink()

    def playbook(self) -> str:
        def raw(words: str) -> dict[str, object]:
            # By the shell alone: a module would be a Python more for each host.
            return {"ansible.builtin.raw": words, "changed_when": False}

        def note(word: str, item: str = "inventory_hostname") -> dict[str, object]:
            return raw(f"echo {word} {{{{ {item} }}}} >> {self.log}")

        local = {"hosts": "localhost", "connection": "local", "gather_facts": False}
        nodes = {"hosts": "gpu_nodes", "gather_facts": False}
        wait = raw(f"while ! [ -e {self.folder}/go ]; do sleep 0.1; done")
        host = {"host": "{{ inventory_hostname }}"}
        plays = [
            {**local, "name": "Meet", "tasks": [{**note("contact"), "tags": ["first_contact"]}]},
            {**nodes, "hosts": "kube_apiserver", "name": "Build", "tasks": [note("control")]},
            {
                **nodes,
                "name": "Work",
                "tasks": [
                    {
                        "preflight_report": {"hosts": "{{ ansible_play_hosts_all }}"},
                        "run_once": True,
                        "any_errors_fatal": True,
                    },
                    note("begin"),
                    {"ansible.builtin.fail": {"msg": "no room"}, "when": "inventory_hostname in fails | default([])"},
                    wait,
                    {"burnin": host},
                    {"kubelet_state": host},
                    note("end"),
                ],
            },
            {
                **local,
                "name": "Wait",
                "tags": ["admit"],
                "tasks": [
                    {"node_admission": {"nodes": "{{ groups['gpu_nodes'] }}"}},
                    {
                        **note("open", "item"),
                        "loop": "{{ groups['gpu_nodes'] }}",
                        "when": "(hostvars[item].__node_admission_gate_state | default({})).gate_open | default(false)",
                    },
                ],
            },
            {**nodes, "name": "Report", "tags": ["report"], "tasks": [note("report")]},
        ]
        (self.folder / "site.yml").write_text(yaml.safe_dump(plays, sort_keys=False))
        return "site.yml"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "collections"),
            "PYTHONPATH": str(REPOSITORY),
            **self.environment,
        }
        environment.pop("PYTEST_CURRENT_TEST", None)
        command = [sys.executable, "-c", "from gpu_burnin.cli.program import call; import sys; "
                   "from gpu_burnin.cli.muster.main import cli; sys.exit(call(cli))"]  # fmt: skip
        return subprocess.Popen(
            [*command, "roll", self.playbook(), "-i", "hosts.yml", "--json", *arguments],
            cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def roll(self, *arguments: str) -> tuple[int, dict[str, object], str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, json.loads(out) if out else {}, err

    def done(self, word: str) -> Counter[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(line.partition(" ")[2] for line in lines if line.startswith(f"{word} "))

    def processes(self, *words: str) -> list[int]:
        """The processes of this fleet whose command lines have these words."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.folder) in line and all(word in line for word in words):
                found.append(int(path.parent.name))
        return sorted(found)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.go()
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def outcomes(report: dict[str, object]) -> dict[str, str]:
    hosts = report["hosts"]
    assert isinstance(hosts, dict)
    return {host: str(one["outcome"]) for host, one in hosts.items()}


def test_three_kills_skip_nobody_and_repeat_no_shard(fleet: Fleet) -> None:
    fleet.halt()
    temporary = fleet.folder / "tmp"
    temporary.mkdir()
    fleet.environment = {"TMPDIR": str(temporary), "PASSWORD_OF_SOMEBODY": "correct-horse"}
    shards = ("--canary", "8", "--shard", "4")
    first = fleet.start(*shards)
    wait_until(lambda: sum(fleet.done("begin").values()) == 8)
    first.kill()
    first.communicate()
    # The executor is gone and both shards go on; one of them is killed, but not its forks.
    worker = fleet.processes("fleet.waves.worker", "shard-0001")[0]
    # It has a fork for each host, which waits there.
    wait_until(lambda: len(fleet.processes("ansible-playbook", "shard-0001")) > 4)
    before = fleet.processes("ansible-playbook", "shard-0001")
    private = list((fleet.folder / "state/roll/steps").glob("*/runner"))
    assert len(private) == len(list(temporary.glob("muster-*"))) == 2, "of each shard"
    kept = [one for folder in private for one in folder.rglob("*") if one.is_file()]
    assert kept and not [one for one in kept if b"correct-horse" in one.read_bytes()], "no environment is kept"
    os.kill(worker, signal.SIGKILL)
    second = fleet.start(*shards)
    wait_until(lambda: sum(fleet.done("begin").values()) == 12)
    assert not set(before) & set(fleet.processes("ansible-playbook")), "nobody works on its hosts beside it"
    # And an ansible-playbook alone: its shard is begun once more by the same executor.
    os.kill(fleet.processes("ansible-playbook", "shard-0001")[0], signal.SIGKILL)
    wait_until(lambda: sum(fleet.done("begin").values()) == 16)
    fleet.go()
    out, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, err
    assert "that run is dead" in err and "shard-0001: its process ended with" in err
    assert outcomes(json.loads(out)) == dict.fromkeys(NODES, "done")
    assert fleet.done("end") == Counter(NODES), "each host has come to its end once"
    assert fleet.done("begin") == Counter({**dict.fromkeys(NODES[:4], 3), **dict.fromkeys(NODES[4:], 1)})
    assert fleet.done("control") == {"api-1": 1} and fleet.done("contact") == {"localhost": 2}
    assert fleet.done("report") == {}
    assert list(temporary.glob("muster-*")) == list((fleet.folder / "state/roll/steps").glob("*/runner")) == []


def test_results_are_no_failures_and_failures_of_some_keep_nobody_else(fleet: Fleet) -> None:
    fleet.keep_states(gpu_2="fails", gpu_3="closed", gpu_4="not admitted", gpu_7="unfit")
    inventory = yaml.safe_load((fleet.folder / "hosts.yml").read_text())
    inventory["all"]["children"]["gpu_nodes"]["hosts"]["gpu-6"] = SILENT
    (fleet.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    call = ("--canary", "4", "--most-failed", "2", "--", "-e", '{"fails": ["gpu-5"]}')
    code, report, err = fleet.roll(*call)
    assert code == 1, err
    bad = {"gpu-5": "failed", "gpu-6": "left", "gpu-7": "failed"}
    held = dict.fromkeys(("gpu-2", "gpu-3", "gpu-4"), "held")
    assert outcomes(report) == {**dict.fromkeys(NODES, "done"), **held, **bad}
    hosts = report["hosts"]
    assert isinstance(hosts, dict)
    assert [hosts[f"gpu-{n}"]["why"] for n in (2, 3, 4)] == ["FAIL: XID_FATAL", "no PASS", "BRAKE: later"]
    assert "no room" in hosts["gpu-5"]["why"] and "refused" in hosts["gpu-6"]["why"]
    assert hosts["gpu-7"]["why"] == "no room; make some"
    stopped = str(report["stopped"])
    assert stopped.startswith("2 of the 8 nodes tried failed (gpu-") and stopped.endswith(
        "), and --most-failed is 2: no further shard begins"
    )
    assert set(fleet.done("open")) == set(NODES) - {"gpu-3", *bad}, "the wait knows what each gate said"
    assert fleet.done("end") == Counter({*NODES} - bad.keys())
    # The same call has those that failed or were left behind, and nobody else.
    fleet.log.unlink()
    code, report, err = fleet.roll(*call)
    assert code == 1 and outcomes(report) == bad, err
    assert set(fleet.done("begin")) == {"gpu-5"}
    # A fault that is no host's ends a shard for all, and is not tried again and again.
    fleet.keep_states(everyone="")
    code, report, err = fleet.roll("--again", "-l", "gpu-1:gpu-2", "--canary", "2")
    assert code == 1 and outcomes(report) == {"gpu-1": "failed", "gpu-2": "failed"}, err


def test_two_executors_and_a_changed_inventory_are_refused(fleet: Fleet) -> None:
    inventory = fleet.folder / "hosts.yml"
    listed = yaml.safe_load(inventory.read_text())
    listed["all"]["children"]["gpu_nodes"]["hosts"]["gpu-8"] = SILENT
    inventory.write_text(yaml.safe_dump(listed))
    fleet.halt()
    first = fleet.start("--canary", "8")
    wait_until(lambda: sum(fleet.done("begin").values()) == 7)
    code, _, err = fleet.roll("--canary", "8")
    assert code == 2 and "rolls site.yml since" in err and "Ctrl-C" in err
    first.kill()
    first.communicate()
    before = inventory.read_text()
    inventory.write_text(before.replace("model: h100", "model: b200"))
    code, _, err = fleet.roll("--canary", "8")
    assert code == 2 and "the inventory is not what it was" in err
    code, _, err = fleet.roll("--canary", "8", "--again")
    assert code == 2 and "of the roll before still runs" in err
    inventory.write_text(before)
    fleet.go()
    code, report, err = fleet.roll("--canary", "8")
    assert code == 3 and outcomes(report) == {**dict.fromkeys(NODES, "done"), "gpu-8": "left"}, err
    assert fleet.done("begin") == Counter(NODES[:7])
    assert Book(fleet.folder / "state/roll").ended


def test_after_ctrl_c_the_same_call_goes_on_with_the_same_roll(fleet: Fleet) -> None:
    fleet.halt()
    shards = ("--canary", "4", "--shard", "4")
    first = fleet.start(*shards)
    wait_until(lambda: sum(fleet.done("begin").values()) == 4)
    first.send_signal(signal.SIGINT)
    assert first.stderr is not None
    for line in first.stderr:
        if "no further step begins; waiting for shard-0001" in line:
            break
    fleet.go()
    out, err = first.communicate(timeout=PATIENCE_S)
    stopped = json.loads(out)
    assert first.returncode == 1 and stopped["stopped"] == "Ctrl-C", err
    assert outcomes(stopped) == dict.fromkeys(NODES[:4], "done")
    code, report, err = fleet.roll(*shards)
    assert code == 0 and report["roll"] == stopped["roll"], err
    assert outcomes(report) == dict.fromkeys(NODES, "done")
    assert fleet.done("begin") == Counter(NODES) and fleet.done("control") == {"api-1": 1}


def test_a_dry_run_says_the_waves_and_touches_nothing(fleet: Fleet) -> None:
    process = fleet.start("--dry-run", "--shard", "2")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    planned = json.loads(out)
    assert (planned["nodes"], planned["begun"], planned["tried"]) == (8, False, 0)
    assert planned["canaries"] == {"gpu-1": "h100"} and planned["waves"][0] == [["gpu-1"]]
    assert sorted(host for wave in planned["waves"] for shard in wave for host in shard) == sorted(NODES)
    assert fleet.done("begin") == {} and not (fleet.folder / "state/roll").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--shard", "0"), "Invalid value for '--shard'"),
        (("--most-failed", "0%"), "give a count of 1 or more (5), or a share above 0%"),
        (("--canary-group", "none"), "has no group none"),
        (("--canary-group", "gpu", "--canary", "2"), "give one of them"),
        (("--canary-group", "kube_apiserver"), "has none of the nodes of this roll"),
        (("-l", "kube_apiserver"), "no node of the inventory is in this roll"),
    ],
)
def test_bad_input_begins_nothing(fleet: Fleet, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = fleet.roll(*arguments)
    assert code == 2 and says in " ".join(err.split())
    assert not (fleet.folder / "state/roll/roll.json").exists() and fleet.done("begin") == {}
