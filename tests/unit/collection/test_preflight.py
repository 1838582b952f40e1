"""Facts from a made-up root, and every rule of preflight in its case.

Only here: that the role reports all hosts in one result, and what a host that is silent does to the plays after it.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.host.wheel_venv import python_version
from ansible_collections.muster.fleet.plugins.module_utils.preflight import facts as preflight_facts
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import report
from ansible_collections.muster.fleet.plugins.module_utils.preflight.rules import (
    Host,
    Limits,
    check,
    clock_skew_s,
    doubts,
    host_name_fits,
)
from ansible_collections.muster.fleet.plugins.modules.preflight import archive_fault

from tests.support.site_plays import roles_of, site_plays

ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(("debian 12", "ubuntu 24.04"), 2.0, 2 * 2**30, 10 * 2**30)
FACTS: dict[str, Any] = {
    "os": {"id": "debian", "version": "12"},
    "python": "3.11.2",
    "hostname": "gpu-1",
    "machine_id": "0" * 31 + "1",
    "product_uuid": "uuid-1",
    "host_keys": {"ssh-ed25519": "SHA256:one"},
    "memory_bytes": 4 * 2**30,
    "disk_free_bytes": 20 * 2**30,
    "ports_taken": {},
    "mirror_fault": "",
    "archive_fault": "",
    "other_builds": [],
    "kept_builds": [],
    "disk_faults": [],
    "nvidia_problems": [],
    "cgroup_version": 2,
    "swap": [],
    "is_root": True,
    "systemd": True,
    "clock_s": 1000.5,
    "controller_before_s": 1000.0,
    "controller_after_s": 1001.0,
}
OTHER = {"hostname": "gpu-2", "machine_id": "0" * 31 + "2", "product_uuid": "uuid-2", "host_keys": {"x": "SHA256:two"}}

Change = dict[str, Any]


def fleet(**changes: Any) -> dict[str, Host | None]:
    facts = copy.deepcopy(FACTS)
    return {
        "gpu-1": Host({**facts, **changes}, LIMITS, is_node=True),
        "gpu-2": Host({**facts, **OTHER}, LIMITS, is_node=True),
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"os": {"id": "debian", "version": "11"}}, "runs debian 11; install debian 12 or ubuntu 24.04"),
        ({"os": {"id": "", "version": ""}}, "runs an unknown system"),
        ({"python": "3.9.2"}, "Python there is 3.9.2; set ansible_python_interpreter to Python 3.11"),
        ({"is_root": False}, "the login is not root"),
        ({"systemd": False}, "systemd does not run it"),
        ({"hostname": "localhost"}, "hostname is 'localhost'; run: hostnamectl set-hostname gpu-1"),
        ({"machine_id": ""}, "has no machine id"),
        ({"machine_id": "uninitialized"}, "has no machine id"),
        ({"host_keys": {}}, "has no SSH host key"),
        ({"memory_bytes": 2**30}, "has 1.0 GiB of memory, 2.0 are needed"),
        ({"disk_free_bytes": 2**30}, "has 1.0 GiB free on /, 10.0 are needed"),
        ({"clock_s": 1003.5}, "clock is 2.5 s ahead of the controller's"),
        ({"clock_s": 997.0}, "clock is 3.0 s behind the controller's"),
        (
            {"ports_taken": {"10250": "x.service"}},
            "10250 is taken by x.service; run: systemctl disable --now x.service",
        ),
        (
            {"ports_taken": {"6443": ""}},
            "6443 is taken by another program; find it with `ss -ltnp sport = :6443` and stop",
        ),
        (
            {"ports_taken": {"6443": "nc"}},
            "port 6443 is taken by nc; find it with `ss -ltnp sport = :6443` and stop it",
        ),
        (
            {"archive_fault": "the mirror M answers HTTP 404 for gpu-burnin-1.tar"},
            "gpu-1: the mirror M answers HTTP 404 for gpu-burnin-1.tar; put the controller's wheelhouse there",
        ),
        ({"mirror_fault": "the mirror M is silent"}, "gpu-1: the mirror M is silent; start it, let the host reach it"),
        (
            {"other_builds": ["etcd 3.6.16"]},
            "gpu-1: has etcd 3.6.16, and kube_binaries_checksums names another build; .*with playbooks/upgrade.yml, or",
        ),
        ({"disk_faults": ["D holds data; wipe it"]}, "gpu-1: local_ssd_device D holds data; wipe it"),
        ({"disk_faults": ["D cannot be read"]}, "local_ssd_device D cannot be read; give another disk"),
        (
            {"nvidia_problems": [{"message": "no driver fits", "fix": "give another", "of_machine": False}]},
            "gpu-1: no driver fits; give another",
        ),
        ({"swap": ["/dev/sda2"]}, "node with swap on /dev/sda2; run: swapoff -a"),
        ({"cgroup_version": 1}, "node with cgroup v1"),
        ({"machine_id": OTHER["machine_id"]}, "gpu-1, gpu-2: have the same machine id 0+2; on all but one"),
        ({"product_uuid": "uuid-2"}, "gpu-1, gpu-2: have the same product UUID uuid-2"),
        ({"host_keys": {"y": "SHA256:two"}}, "gpu-1, gpu-2: have the same SSH host key SHA256:two"),
    ],
)
def test_each_rule_fires_alone(changes: Change, expected: str) -> None:
    problems = check(fleet(**changes))
    assert len(problems) == 1
    assert re.search(expected, report("x", problems)), report("x", problems)
    assert "gpu-1" in problems[0].hosts


@pytest.mark.parametrize(
    ("changes", "limits", "is_node"),
    [
        ({"swap": ["/dev/sda2"]}, {"allow_swap": True}, True),
        ({"cgroup_version": 1}, {"allow_cgroup_v1": True}, True),
        ({"swap": ["/dev/sda2"], "cgroup_version": 1}, {}, False),
        ({"product_uuid": "uuid-2"}, {"check_product_uuid": False}, True),
        ({"product_uuid": ""}, {}, True),
        ({"clock_s": 1002.9}, {}, True),
    ],
)
def test_what_is_allowed_is_no_problem(changes: Change, limits: Change, is_node: bool) -> None:
    hosts = fleet(**changes)
    assert hosts["gpu-1"] is not None
    hosts["gpu-1"] = replace(hosts["gpu-1"], limits=replace(LIMITS, **limits), is_node=is_node)
    assert check(hosts) == []


def test_all_problems_at_once_and_a_silent_host() -> None:
    hosts = fleet(is_root=False, machine_id=OTHER["machine_id"])
    hosts["gpu-3"] = None
    assert len(check(hosts)) == 3
    assert "gpu-3: gave no preflight facts" in report("x", check(hosts))


def test_what_is_of_one_machine_is_a_doubt_and_stops_nobody() -> None:
    sick = {"message": "library and module differ", "fix": "reboot", "of_machine": True}
    hosts = fleet(nvidia_problems=[sick])
    assert check(hosts) == []
    assert [doubt.line() for doubt in doubts(hosts)] == ["gpu-1: library and module differ; reboot; the node is held"]
    hosts = fleet(nvidia_problems=[{**sick, "of_machine": False}])
    assert doubts(hosts) == [] and [problem.hosts for problem in check(hosts)] == [("gpu-1",)]


def test_what_nodes_keep_is_told_and_stops_nobody() -> None:
    hosts = fleet()
    for host in hosts.values():
        assert host is not None
        host.facts["kept_builds"] = ["kubelet 1.35.4"]  # type: ignore[index]
    assert check(hosts) == []
    (told,) = doubts(hosts)
    assert told.hosts == ("gpu-1", "gpu-2")
    assert (
        "keeps kubelet 1.35.4, and kube_binaries_checksums names another build; bring a running fleet to" in told.line()
    )


def test_the_same_problem_of_many_hosts_is_one_line() -> None:
    fault = "the mirror http://mirror cannot be reached: timed out"
    hosts = fleet(mirror_fault=fault)
    assert hosts["gpu-2"] is not None
    hosts["gpu-2"] = replace(hosts["gpu-2"], facts={**hosts["gpu-2"].facts, "mirror_fault": fault})
    assert [problem.hosts for problem in check(hosts)] == [("gpu-1", "gpu-2")]


@pytest.mark.parametrize(("clock", "skew"), [(1000.0, 0.0), (1001.0, 0.0), (1001.5, 0.5), (999.0, -1.0)])
def test_the_time_on_the_way_is_no_skew(clock: float, skew: float) -> None:
    assert clock_skew_s({**FACTS, "clock_s": clock}) == skew


@pytest.mark.parametrize(
    ("name", "hostname", "fits"),
    [
        ("a", "a", True),
        ("a", "a.example.com", True),
        ("a.example.com", "a", True),
        ("a", "b", False),
        ("a.example.com", "a.example.org", False),
    ],
)
def test_host_name_fits(name: str, hostname: str, fits: bool) -> None:
    assert host_name_fits(name, hostname) is fits


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def tcp_line(port: int, state: str, inode: int) -> str:
    return f"   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\nBROKEN\n')
    put(tmp_path, "etc/machine-id", "a" * 32 + "\n")
    put(tmp_path, "etc/ssh/ssh_host_ed25519_key.pub", f"ssh-ed25519 {base64.b64encode(b'key').decode()} root@x\n")
    put(tmp_path, "etc/ssh/ssh_host_rsa_key.pub", "ssh-rsa !!!\n")
    put(tmp_path, "etc/ssh/ssh_host_dsa_key.pub", "")
    put(tmp_path, "sys/class/dmi/id/product_uuid", "ABCD-1\n")
    put(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu\n")
    put(tmp_path, "proc/sys/kernel/random/boot_id", "boot-1\n")
    put(tmp_path, "proc/meminfo", "MemTotal:        2048 kB\nMemFree: 1 kB\n")
    put(tmp_path, "proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n")
    header = "  sl  local_address\n"
    put(
        tmp_path,
        "proc/net/tcp",
        header + tcp_line(2379, "0A", 11) + tcp_line(2380, "01", 12) + tcp_line(6443, "0A", 14),
    )
    put(tmp_path, "proc/net/tcp6", header + tcp_line(10250, "0A", 13))
    for pid, inode, cgroup in ((100, 11, "0::/system.slice/etcd.service"), (101, 13, "0::/user.slice")):
        put(tmp_path, f"proc/{pid}/cgroup", f"{cgroup}\n")
        put(tmp_path, f"proc/{pid}/comm", "python3\n")
        (tmp_path / f"proc/{pid}/fd").mkdir()
        (tmp_path / f"proc/{pid}/fd/3").symlink_to(f"socket:[{inode}]")
    return tmp_path


def test_gather(root: Path) -> None:
    wanted = {2379: ["etcd.service"], 2380: [], 10250: ["kubelet.service"], 6443: ["kube-apiserver.service"], 9: []}
    facts = preflight_facts.gather(wanted, root, lambda _: "inactive")
    digest = base64.b64encode(hashlib.sha256(b"key").digest()).decode().rstrip("=")
    assert facts["os"] == {"id": "ubuntu", "version": "24.04"}
    assert facts["machine_id"] == "a" * 32
    assert facts["product_uuid"] == "abcd-1"
    assert facts["boot_id"] == "boot-1"
    assert facts["host_keys"] == {"ssh-ed25519": f"SHA256:{digest}"}
    assert facts["memory_bytes"] == 2 * 2**20
    assert facts["swap"] == ["/dev/sda2"]
    assert facts["cgroup_version"] == 2
    assert facts["systemd"] is False
    # etcd may hold its port; 2380 is a connection, not a listener; the owner of 6443 is not visible.
    assert facts["ports_taken"] == {"10250": "python3", "6443": ""}


@pytest.mark.parametrize(("again", "owner"), [(15, {2379: "etcd.service"}), (None, {})])
def test_a_service_that_restarts_meanwhile_is_no_other_program(
    root: Path, monkeypatch: pytest.MonkeyPatch, again: int | None, owner: dict[int, str]
) -> None:
    """Its socket was listed and is closed: it has a new one (of etcd, after a killed `upgrade.yml`), or none."""
    process, seen = root / "proc/100", list[Path]()
    real = preflight_facts.open_files

    def open_files(path: Path) -> list[str]:
        if not seen:
            (process / "fd/3").unlink()
            put(root, "proc/net/tcp", "  sl\n" + (tcp_line(2379, "0A", again) if again else ""))
            if again:
                (process / "fd/3").symlink_to(f"socket:[{again}]")
        seen.append(path)
        return real(path)

    monkeypatch.setattr(preflight_facts, "open_files", open_files)
    assert preflight_facts.port_owners(root, [2379]) == owner


@pytest.mark.parametrize(
    ("state", "taken"), [("active", {}), ("deactivating", {}), ("activating", {"6443": ""}), ("failed", {"6443": ""})]
)
def test_a_service_that_is_being_stopped_has_its_port_though_no_process_shows_it(
    root: Path, state: str, taken: dict[str, str]
) -> None:
    """One that is to be started, or has failed, may have found another program there."""
    facts = preflight_facts.gather({6443: ["kube-apiserver.service"]}, root, lambda _: state)
    assert facts["ports_taken"] == taken


def test_one_that_never_rests_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(20, 100))
    monkeypatch.setattr(preflight_facts, "listening_inodes", lambda *_: {2379: {str(next(numbers))}})
    assert preflight_facts.port_owners(root, [2379]) == {2379: ""}


def test_gather_on_an_empty_root(tmp_path: Path) -> None:
    facts = preflight_facts.gather({22: []}, tmp_path)
    assert (facts["machine_id"], facts["host_keys"], facts["memory_bytes"], facts["swap"]) == ("", {}, 0, [])
    assert facts["cgroup_version"] == 1


def test_fingerprint_is_ssh_keygen_s(tmp_path: Path) -> None:
    key = tmp_path / "etc/ssh/ssh_host_ed25519_key"
    key.parent.mkdir(parents=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    printed = subprocess.run(["ssh-keygen", "-lf", str(key)], check=True, capture_output=True, text=True).stdout
    assert preflight_facts.host_keys(tmp_path)["ssh-ed25519"] == printed.split()[1]


@pytest.mark.slow
def test_role_reports_all_hosts_at_once(
    tmp_path: Path, ansible_playbook: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    roles = ["muster.fleet.fleet", "muster.fleet.preflight"]
    play = {"hosts": "all", "gather_facts": False, "roles": roles}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "inv.ini").write_text("[etcd]\nno-such-name-1\nno-such-name-2\n[gpu_nodes]\nno-such-name-3\n")
    variables = {
        "local_ssd_device": "/dev/sdx",
        "kube_binaries_url": f"file://{tmp_path}/no-mirror",
        "kube_binaries_checksums": {},
        "fleet_nvidia_source": "nvidia",
        "fleet_nvidia_driver_version": "580.105.08",
        "fleet_nvidia_repository_url": f"file://{tmp_path}/no-packages",
        "fleet_kernel_root": str(tmp_path),
    }
    done = ansible_playbook("play.yml", "--check", "-e", json.dumps(variables), inventory="inv.ini")
    said = done.stdout + done.stderr
    assert done.returncode == 2
    for number in (1, 2, 3):
        assert f"run: hostnamectl set-hostname no-such-name-{number}" in said
    # One machine plays all three.
    assert "no-such-name-1, no-such-name-2, no-such-name-3: have the same machine id" in said
    # Each group asks for its own first binary; only etcd's hosts give a disk away, which only root may look at.
    for hosts, name in (("no-such-name-1, no-such-name-2", "etcd"), ("no-such-name-3", "kubelet")):
        assert f"{hosts}: the mirror file://{tmp_path}/no-mirror cannot be reached: " in said
        assert f"no-mirror/{name}'" in said
    disk = "no-such-name-1, no-such-name-2: local_ssd_device /dev/sdx is not a stable name; give the disk as"
    assert (disk in said) == (os.geteuid() == 0)
    # Only the GPU node asks for NVIDIA's packages.
    assert f"no-such-name-3: the repository file://{tmp_path}/no-packages cannot be reached: " in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_the_role_asks_for_what_dcgm_and_toolkit_will_take_from_the_repository(
    tmp_path: Path, ansible_playbook: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    toolkit = {"nvidia_container_toolkit_source": "nvidia", "nvidia_container_toolkit_version": "1.20.1"}
    dcgm = {"nvidia_dcgm_version": "4.5.2"}
    of = {
        "asks-1": {"fleet_nvidia_source": "image", **toolkit},
        "asks-2": {"fleet_nvidia_source": "debian", **dcgm},
        "asks-3": {"fleet_nvidia_source": "ubuntu", **toolkit},
        "silent-1": {"fleet_nvidia_source": "image", **dcgm},
        "silent-2": {"fleet_nvidia_source": "debian"},
        "silent-3": {"fleet_nvidia_source": "debian", "nvidia_container_toolkit_version": "1.20.1"},
    }
    roles = ["muster.fleet.fleet", "muster.fleet.preflight"]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "roles": roles}]))
    (tmp_path / "inv.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": of}}))
    variables = {
        "fleet_nvidia_driver_version": "580.105.08",
        "fleet_nvidia_repository_url": f"file://{tmp_path}/no-packages",
        "fleet_kernel_root": str(tmp_path),
    }
    done = ansible_playbook("play.yml", "--check", "-e", json.dumps(variables), inventory="inv.yml")
    said = done.stdout + done.stderr
    assert f"asks-1, asks-2, asks-3: the repository file://{tmp_path}/no-packages cannot be reached: " in said
    assert "run: hostnamectl set-hostname silent-3" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "goes_on"), [("gpu-1", True), ("etcd-1", False)])
def test_a_silent_node_is_left_out_and_a_silent_control_plane_stops(
    tmp_path: Path, ansible_playbook: Callable[..., subprocess.CompletedProcess[str]], silent: str, goes_on: bool
) -> None:
    """The play of site.yml and the role's own report, on facts of one host and on one where nobody listens."""
    name = "Check every host and report all problems at once"
    play = next(play for play in site_plays() if play["name"] == name)
    *_, judge = yaml.safe_load((ROOT / "roles/preflight/tasks/main.yml").read_text())
    answers = {"gpu-1": "etcd-1", "etcd-1": "gpu-1"}[silent]
    facts = {**FACTS, "hostname": answers, "controller_before_s": 1000.0, "controller_after_s": 1001.0}
    known = {"facts": facts, "limits": asdict(LIMITS), "is_node": False}
    play |= {
        "roles": ["muster.fleet.fleet"],
        "tasks": [
            {"ansible.builtin.raw": "true", "register": "__preflight_facts"},
            {"ansible.builtin.set_fact": {"__preflight_facts": known}},
            judge,
        ],
    }
    after = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.debug": {"msg": "went on"}}]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play, after]))
    here, off = "ansible_connection=local", "ansible_connection=ssh ansible_host=127.0.0.1 ansible_port=1"
    lines = [f"{host} {off if host == silent else here}" for host in ("etcd-1", "gpu-1")]
    (tmp_path / "inv.ini").write_text("[etcd]\n{}\n[gpu_nodes]\n{}\n".format(*lines))
    done = ansible_playbook("play.yml", "-e", f"fleet_state_dir={tmp_path}", inventory="inv.ini")
    said = done.stdout + done.stderr
    # Ansible's own code of a run with an unreachable host.
    assert done.returncode == 4, said
    assert ("went on" in said) == goes_on, said
    assert (f"{silent}: gave no preflight facts" in said) != goes_on


def site_variables(role: str) -> dict[str, dict[str, Any]]:
    """The variables of the plays of site.yml that apply a role, by inventory group."""
    found: dict[str, dict[str, Any]] = {}
    for play in site_plays():
        if role in roles_of(play):
            found |= dict.fromkeys(play["hosts"].split(":"), play["vars"])
    return found


def test_preflight_looks_at_what_site_yml_will_use() -> None:
    defaults = yaml.safe_load((ROOT / "roles/preflight/defaults/main.yml").read_text())
    binaries = {group: found["kube_binaries_names"] for group, found in site_variables("kube_binaries").items()}
    assert defaults["preflight_binaries"] == binaries
    assert defaults["preflight_disk_groups"] == list(site_variables("local_ssd"))
    text = (ROOT / "roles/preflight/tasks/main.yml").read_text()
    repeated = dict(re.findall(r"\{\{ ((?:local_ssd|kube_binaries|nvidia_driver)_\w+) \| default\(([^()]+)\)", text))
    for role in ("local_ssd", "kube_binaries", "nvidia_driver"):
        own = yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text())
        shown = {name: yaml.safe_load(value) for name, value in repeated.items() if name in own}
        assert shown
        assert shown == {name: own[name] for name in shown}
    for found in site_variables("local_ssd").values():
        assert f"mount_point: {found['local_ssd_mount_point']}\n" in text


@pytest.mark.parametrize("role", ["fleet", "preflight"])
def test_spec_repeats_the_defaults(role: str) -> None:
    defaults = yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text())
    specs = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]
    options = {name: option for entry in specs.values() for name, option in entry["options"].items()}
    assert {name: option["default"] for name, option in options.items() if "default" in option} == defaults


def test_the_mirror_is_asked_for_the_archive_by_hosts_that_lack_it(tmp_path: Path) -> None:
    """Nobody listens at this port of loopback."""
    root, content = tmp_path / "gpu-burnin", b"wheels"
    asked = {"url": "http://127.0.0.1:1/w/", "name": "gpu-burnin-7.tar", "sha256": hashlib.sha256(content).hexdigest()}
    asked |= {"build": str(root / "7"), "timeout_s": 1}
    assert archive_fault(**asked).startswith("the mirror http://127.0.0.1:1/w cannot be reached: ")
    (tmp_path / "gpu-burnin-7.tar").write_bytes(content)
    assert archive_fault(**asked) == ""
    (tmp_path / "gpu-burnin-7.tar").write_bytes(b"of another build")
    assert archive_fault(**asked)
    (root / "7").mkdir(parents=True)
    (root / "7/.complete").write_text(python_version())
    assert archive_fault(**asked) == ""


def test_a_mirror_that_has_the_archive_not_is_named_with_the_file(tmp_path: Path) -> None:
    asked = {"url": tmp_path.as_uri(), "name": "gpu-burnin-7.tar", "sha256": "a" * 64, "build": "/none/gpu-burnin/7"}
    assert "gpu-burnin-7.tar" in archive_fault(**asked, timeout_s=1)
    (tmp_path / "gpu-burnin-7.tar").touch()
    assert archive_fault(**asked, timeout_s=1) == ""


@pytest.mark.slow
def test_a_gpu_node_asks_for_the_archive_of_its_cuda_that_the_controller_has(
    tmp_path: Path, ansible_playbook: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    first, *_ = yaml.safe_load((ROOT / "roles/preflight/tasks/main.yml").read_text())
    told = "RESULT {{ inventory_hostname }} {{ __preflight_archive.sha256 }} {{ __preflight_archive.name }} ;"
    play = {
        "hosts": "all",
        "gather_facts": False,
        "roles": [{"role": "muster.fleet.fleet"}],
        "tasks": [
            {"ansible.builtin.import_role": {"name": "muster.fleet.gpu_burnin", "tasks_from": "archives"}},
            {"ansible.builtin.debug": {"msg": told}, "vars": first["vars"]},
        ],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    groups = {"kube_apiserver": {"hosts": {"api-1": {}}}, "gpu_nodes": {"hosts": {"gpu-1": {"gpu_burnin_cuda": "12"}}}}
    shared = {"fleet_name": "test", "fleet_state_dir": str(tmp_path), "preflight_mirror_timeout_s": 1}
    shared |= {"fleet_wheelhouse_url": "http://127.0.0.1:1/w"}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": shared}}))
    # Nothing is built yet, so that nobody knows a digest.
    done = ansible_playbook("play.yml", inventory="hosts.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    (name,) = re.findall(r"RESULT gpu-1  (gpu-burnin-\w+\.tar) ;", done.stdout)
    assert "RESULT api-1   ;" in done.stdout and not (tmp_path / "wheelhouse").exists()
    (tmp_path / "wheelhouse").mkdir()
    (tmp_path / "wheelhouse" / name).touch()
    (tmp_path / "wheelhouse" / f"{name}.sha256").write_text(f"{'c' * 64}  {name}\n")
    done = ansible_playbook("play.yml", inventory="hosts.yml")
    assert f"RESULT gpu-1 {'c' * 64} {name} ;" in done.stdout, done.stdout
