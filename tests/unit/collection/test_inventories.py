"""The inventories of the checkout fit the roles: what site.yml checks first finds no problem in them.

Only here: that the inventories which people copy, and the lab's, pass the check of site.yml.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.action.inventory_check import PER_HOST

from gpu_burnin.fleet.mirror.programs import CONTAINERD
from tests.support.example_inventory import EXAMPLE, filled_example
from tests.support.site_plays import site_plays

Playbook = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[3]
CHECK = f"""\
- hosts: localhost
  gather_facts: false
  tasks:
    - muster.fleet.inventory_check:
        playbook: {ROOT}/site.yml
"""


@pytest.fixture
def check(tmp_path: Path, ansible_playbook: Playbook, monkeypatch: pytest.MonkeyPatch) -> Playbook:
    """Runs the inventory check of site.yml alone on an inventory."""
    (tmp_path / "check.yml").write_text(CHECK)
    # The lab's inventory reads the checksums of the lab's cache, which a fresh checkout does not have yet.
    cache = tmp_path / "cache/bin/current"
    cache.parent.mkdir(parents=True)
    sums = (filled_example(cache) / "SHA256SUMS.txt").read_text()
    own = (*CONTAINERD, "nvidia-ctk", "nvidia-cdi-hook", "labtool.tar", "deviceplugin.tar", "python.tar")
    (cache / "SHA256SUMS").write_text(sums + "".join(f"{'0123456789abcdef' * 4}  {name}\n" for name in own))
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    # And the key of its stand-in of NVIDIA's repository, which `make lab` builds.
    keys = tmp_path / "state/lab/nvidia/keys"
    keys.mkdir(parents=True)
    (keys / "good.asc").write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    (keys / "good.fingerprint").write_text("0123456789ABCDEF0123" * 2)
    monkeypatch.setenv("MUSTER_LAB_STATE", str(tmp_path / "state"))

    def run(inventory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ansible_playbook("check.yml", *arguments, inventory=str(inventory))

    return run


def problems(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The problems told, each without its dash."""
    return [line.removeprefix("- ") for line in (done.stdout + done.stderr).splitlines() if line.startswith("- ")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the example with a site's values", "lab"])
def test_the_inventory_has_no_problem(check: Playbook, tmp_path: Path, name: str) -> None:
    done = check(ROOT / "inventory/lab" if name == "lab" else filled_example(tmp_path / "site"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed=0" in done.stdout
    # A file of the folder that Ansible takes for a part of the inventory, and cannot read, would be a warning.
    assert "parse" not in done.stderr.lower(), done.stderr


@pytest.mark.slow
def test_the_inventory_of_0_2_0_has_no_problem(check: Playbook, tmp_path: Path) -> None:
    commit = "acfc5b8e1747a503082a89c4e1ea5abcf5cfb7af"
    done = subprocess.run(["git", "-C", ROOT, "archive", commit, "inventory/example"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this clone has no commit {commit[:8]}, which is 0.2.0: fetch its history")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(tmp_path)
    found = check(filled_example(tmp_path / "site", tmp_path / "inventory/example"))
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_the_example_fails_with_its_placeholders_and_nothing_else(check: Playbook, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    done = check(tmp_path / "example")
    assert done.returncode == 2
    found = [re.search(r"(example/\S+):\d+.*: (\w+) still has .*placeholder.*; .+", line) for line in problems(done)]
    assert all(found), problems(done)
    hosts, every = "example/hosts.yml", "example/group_vars/all.yml"
    assert {match.groups() for match in found if match} == {
        (hosts, "ansible_host"), (hosts, "fleet_address"), (hosts, "local_ssd_device"), (every, "fleet_name"),
        (every, "fleet_api_address"), (every, "kube_binaries_url"), (every, "kube_binaries_checksums"),
        (every, "time_sync_servers"),
    }  # fmt: skip


@pytest.mark.slow
def test_admission_by_hand_refuses_placeholders_before_it_dials(ansible_playbook: Playbook, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    done = ansible_playbook(str(ROOT / "playbooks/admit.yml"), inventory=str(tmp_path / "example"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert any("ansible_host still has a placeholder" in line for line in problems(done)), done.stdout + done.stderr
    assert done.stdout.count("PLAY [") == 1
    (tmp_path / "admit.yml").write_text(CHECK.replace("site.yml", "playbooks/admit.yml"))
    done = ansible_playbook("admit.yml", inventory=str(filled_example(tmp_path / "site")))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_check_looks_at_the_example(check: Playbook, tmp_path: Path) -> None:
    """What roles make of a wrong address or level is wrong too, and is not told again."""
    wrong = ("fleet_planned_nodes=1", "fleet_api_address=10.9.0.41:6443", "gpu_burnin_level=fast")
    done = check(filled_example(tmp_path / "site"), *(word for text in wrong for word in ("-e", text)))
    assert done.returncode == 2
    lines = problems(done)
    assert len(lines) == 3, lines
    assert any(
        "value of gpu_burnin_level must be one of: quick, standard, extended, got: fast" in line for line in lines
    )
    assert any("fleet_planned_nodes is 1, but the inventory has 6 nodes" in line for line in lines), lines
    assert any("fleet_api_address '10.9.0.41:6443' is neither an IP address" in line for line in lines), lines


@pytest.mark.slow
def test_a_range_of_hosts_gets_addresses_and_pod_ranges_by_number(check: Playbook, tmp_path: Path) -> None:
    """The way that the example and the documentation show; without it each formula is told once."""
    site = filled_example(tmp_path / "site")
    hosts = site / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("# gpu-[005:200]:", "gpu-[005:200]:"))
    lines = problems(check(site))
    assert len(lines) == 2, lines
    assert all("gpu-005" in line and line.count("muster.fleet.nth_") == 1 for line in lines), lines
    assert not [line for line in lines if "defaults/main.yml" in line]
    hosts.write_text(re.sub(r", pod_network_range: 198.18.20[12].0/24", "", hosts.read_text()))
    for group in (site / f"group_vars/{name}.yml" for name in ("gpu_nodes", "system_nodes")):
        text = re.sub(r"^#   ((ansible_host|pod_network_range): )", r"\1", group.read_text(), flags=re.MULTILINE)
        group.write_text(text)
    done = check(site)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_teams_are_compared_with_the_gpu_nodes(check: Playbook, tmp_path: Path) -> None:
    """What the teams get is counted over the hosts, whose places and models are read as their variables have them."""
    site = filled_example(tmp_path / "site")
    group = site / "group_vars/gpu_nodes.yml"
    group.write_text(group.read_text().replace("  gpus: 8\n", "  gpus: 8\n  model: h100-sxm5-80gb\n"))
    hosts = site / "hosts.yml"
    place = "fleet_place: {rack: r12, leaf: leaf-7, feed: a}"
    hosts.write_text(hosts.read_text().replace(f"# {place}", place))
    teams = {"fleet_users": ["alice"], "fleet_teams": {"vision": {"gpus": 40, "members": ["alicia"]}}}
    shared = site / "group_vars/all.yml"
    shared.write_text(shared.read_text() + yaml.safe_dump(teams))
    done = check(site)
    assert done.returncode == 2
    lines = problems(done)
    for where, said in (
        ("all.yml", "fleet_teams.vision.members names alicia, which fleet_users does not have; did you mean alice?"),
        ("hosts.yml", "gpu-002, gpu-003, gpu-004: has no fleet_place.leaf, which 1 of the 4 GPU nodes have"),
        ("hosts.yml", "gpu-002, gpu-003, gpu-004: has no fleet_place.rack, which 1 of the 4 GPU nodes have"),
    ):
        assert any(where in line and said in line for line in lines), lines
    shared.write_text(shared.read_text().replace("alicia", "alice"))
    lines = problems(check(site))
    said = "fleet_teams gives 40 GPUs of h100-sxm5-80gb, 40 (vision), and the GPU nodes have 32; take 8 away"
    assert any(said in line for line in lines), lines


# Where the controller keeps its things is fleet_state_dir's to say, how nodes reach the API fleet_api_local_balancer's.
DERIVED = {"nvidia_device_plugin_kubeconfig_dir", "fleet_node_api_url"}
STACK = ["nvidia_driver", "nvidia_fabricmanager", "nvidia_dcgm", "nvidia_container_toolkit", "nvidia_device_plugin"]


@pytest.mark.parametrize("role", ["fleet", *STACK])
def test_the_example_documents_every_variable_of_the_fleet_and_of_the_nvidia_stack(role: str) -> None:
    spec = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())
    text = "".join(path.read_text() for path in EXAMPLE.rglob("*.yml"))
    options = {name for entry in spec["argument_specs"].values() for name in entry["options"]}
    assert options
    assert {name for name in options if f"{name}:" not in text and f"{name} stays" not in text} == (options & DERIVED)


@pytest.mark.slow
def test_the_device_plugin_of_the_gpu_nodes_is_checked_and_is_the_same_on_all(check: Playbook, tmp_path: Path) -> None:
    """Its variables in group_vars/gpu_nodes.yml count, and none of localhost's."""
    site = filled_example(tmp_path / "inventory")
    group = site / "group_vars/gpu_nodes.yml"
    plain = group.read_text()
    group.write_text(plain + "nvidia_device_plugin_image: registry.site.internal/plugin:latest\n")
    (line,) = problems(check(site))
    assert "nvidia_device_plugin_image 'registry.site.internal/plugin:latest' has no digest" in line
    group.write_text(
        plain
        + f"nvidia_device_plugin_image: registry.site.internal/plugin@sha256:{'0a' * 32}\n"
        + "nvidia_container_toolkit_source: image\n"
    )
    (site / "host_vars").mkdir()
    own = site / "host_vars/gpu-001.yml"
    own.write_text('nvidia_device_plugin_image: ""\nnvidia_container_toolkit_source: mirror\n')
    hook, image = sorted(line for line in problems(check(site)) if "nvidia_device_plugin" in line)
    assert re.search(
        r"nvidia_device_plugin_cdi_hook is .*/usr/bin/nvidia-cdi-hook.* and .*/usr/local/bin.* on gpu-001, ", hook
    )
    assert re.search(
        r'gpu-001.yml:1, gpu-001: nvidia_device_plugin_image is "registry.*" on gpu-.* and "" on gpu-001, ', image
    )


def test_what_may_differ_between_hosts_is_a_variable_of_the_fleet() -> None:
    spec = yaml.safe_load((ROOT / "roles/fleet/meta/argument_specs.yml").read_text())
    options = spec["argument_specs"]["variables"]["options"]
    said = {name for name, option in options.items() if "Per host." in str(option["description"])}
    assert said <= PER_HOST <= set(options)
    assert {name for name in options if name.startswith("fleet_nvidia_")} <= PER_HOST


def test_what_the_example_has_commented_out_is_the_default() -> None:
    specs = [yaml.safe_load(path.read_text()) for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")]
    entries = [entry["options"] for spec in specs for entry in spec["argument_specs"].values()]
    options = {name: option for entry in entries for name, option in entry.items()}
    text = "".join(path.read_text() for path in (EXAMPLE / "group_vars").glob("*.yml"))
    shown = dict(re.findall(r"^# ((?!ansible_)[a-z0-9_]+): (.+)$", text, re.MULTILINE))
    assert shown
    assert sorted(set(shown) - set(options)) == []
    fixed = {name for name in shown if "{{" not in str(options[name].get("default"))}
    assert {name: yaml.safe_load(shown[name]) for name in fixed} == {name: options[name]["default"] for name in fixed}


def test_no_checksum_of_the_example_fits_a_file() -> None:
    """Somebody who forgets to replace them must be told, and not get somebody else's binaries."""
    lines = [line for line in (EXAMPLE / "SHA256SUMS.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all(line.startswith("0" * 64 + "  ") for line in lines)


# What reads and reports. ssh_probe also pins host keys, on the controller; etcd_lock with state=free takes nothing.
LOOKS = {
    "muster.fleet.inventory_check",
    "muster.fleet.etcd_lock",
    "muster.fleet.native_gangs",
    "muster.fleet.ssh_probe",
    "muster.fleet.preflight",
    "muster.fleet.preflight_report",
}


@pytest.mark.slow
def test_with_the_tag_preflight_site_only_looks(ansible_playbook: Playbook, tmp_path: Path) -> None:
    inventory = str(filled_example(tmp_path / "site"))
    done = ansible_playbook(str(ROOT / "site.yml"), "--tags", "preflight", "--list-tasks", inventory=inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = re.findall(r"^      (?:muster\.fleet\.(\w+) : )?(.+?)\tTAGS: \[(.*)\]$", done.stdout, re.MULTILINE)
    # Ansible itself looks at the variables of every role, whatever the tags.
    left = {
        (role, name)
        for role, name, tags in listed
        if not (name.startswith("Validating arguments") and "always" in tags.split(", "))
    }
    play = site_plays()[0]
    role = yaml.safe_load((ROOT / "roles/preflight/tasks/main.yml").read_text())
    (archives,) = yaml.safe_load((ROOT / "roles/gpu_burnin/tasks/archives.yml").read_text())
    assert "'--dry-run'" in archives["ansible.builtin.command"]["argv"]
    tasks = [*(("", task) for task in play["tasks"]), ("gpu_burnin", archives), *(("preflight", task) for task in role)]
    assert left == {(role, task["name"]) for role, task in tasks}
    assert {key for _, task in tasks for key in task if key.startswith("muster.fleet.")} == LOOKS
    (lock,) = (task["muster.fleet.etcd_lock"] for _, task in tasks if "muster.fleet.etcd_lock" in task)
    assert lock["state"] == "free"
