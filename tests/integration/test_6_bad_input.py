"""Bad input on the converged lab: one clear problem with place and fix, exit code 2, and not a host touched.

Each case is a copy of the lab's inventory with one mistake in it. The mistakes that need no host to be seen are in
tests/unit/collection/test_bad_inventory.py too, all at once.

Only here: what is refused by looking at hosts, and that no file of any host is touched.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_burnin.fleet import history
from tests.lab.fleet import LAB_INVENTORY, PlaybookResult, run_playbook
from tests.lab.paths import REPOSITORY

from .fleet import Fleet

CHECK = "Check the inventory and every role's variables"
LOOK = "Check every host and report all problems at once"
ETCD_2 = r"(etcd-2: \{)"
KNOWN_HOSTS = r"^(fleet_known_hosts: ).*"
# A SHA-256 that no file has, as a new release would bring one: the binary has to be fetched.
NEW_ETCDCTL = f"| combine({{'etcdctl': '{'ab' * 32}'}})"
Refused = Callable[..., str]


def state_of_hosts(fleet: Fleet) -> dict[str, str]:
    """Every file below the folders that roles write to, with its times, on each host; the controller's state too.

    But for the history of plays, which tells of those that ended with an error too.
    """
    found = {
        host: fleet.must(host, "find /etc /usr/local /opt /root/.ssh -printf '%p %T@ %C@ %m\\n' | sort")
        for host in fleet.addresses
    }
    files = sorted(file for file in fleet.state.rglob("*") if not file.name.startswith(history.FILE))
    found["the controller"] = "\n".join(f"{file} {file.stat().st_mtime_ns}" for file in files)
    return found


@pytest.fixture(scope="module", autouse=True)
def untouched(fleet: Fleet) -> Iterator[None]:
    """Nothing has changed on any host when the tests of this module have ended."""
    before = state_of_hosts(fleet)
    yield
    after = state_of_hosts(fleet)
    for place, files in before.items():
        changed = set(files.splitlines()) ^ set(after[place].splitlines())
        assert not changed, f"bad input touched {place}: {sorted(changed)}"


def plays(result: PlaybookResult) -> list[str]:
    """The plays that were begun."""
    return re.findall(r"^PLAY \[(.*)\]", result.log.read_text(), re.MULTILINE)


@pytest.fixture
def refused(fleet: Fleet, tmp_path: Path) -> Refused:
    """Runs site.yml on the lab's inventory with mistakes; returns the one problem of the one task that failed."""
    inventory = tmp_path / "inventory"
    shutil.copytree(LAB_INVENTORY, inventory)

    def run(*mistakes: tuple[str, str, str], last_play: str = CHECK) -> str:
        for name, old, new in mistakes:
            text, count = re.subn(old, new, (inventory / name).read_text(), flags=re.MULTILINE)
            assert count == 1, f"{name}: {old}"
            (inventory / name).write_text(text)
        result = run_playbook(REPOSITORY / "site.yml", inventory, name="bad-input")
        assert result.rc == 2
        assert result.changed == {}
        assert plays(result) == [CHECK, LOOK][: 1 + (last_play == LOOK)]
        (failure,) = result.failures
        problems = [line.removeprefix("- ") for line in failure.splitlines() if line.startswith("- ")]
        assert len(problems) == 1, failure
        return problems[0]

    return run


ALL = "group_vars/all.yml"


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        pytest.param(
            ALL, "^kube_binaries_url: .*\n", "",
            r".*: role kube_binaries needs kube_binaries_url, which is not set; set kube_binaries_url in the inventory",
            id="a variable is missing",
        ),
        pytest.param(
            ALL, "^gpu_burnin_expect: {gpus: 2, ", "gpu_burnin_expect: {power_limit_w: much, gpus: 2, ",
            r".*all.yml:\d+, gpu-1, gpu-2, gpu-3: role gpu_burnin: argument 'power_limit_w' is of type str found in "
            r"'gpu_burnin_expect'. and we were unable to convert to float: .*; correct gpu_burnin_expect",
            id="a variable has the wrong type",
        ),
        pytest.param(
            ALL, "^fleet_name: ", "etcd_quota_byts: 1\nfleet_name: ",
            r".*all.yml:\d+, .*: etcd_quota_byts is not a variable of role etcd; did you mean etcd_quota_bytes\?",
            id="a variable is misspelt",
        ),
        pytest.param(
            ALL, "^fleet_name: ", "kubelt_max_pods: 1\nfleet_name: ",
            r".*all.yml:\d+, .*: kubelt_max_pods is not a variable of role kubelet; did you mean kubelet_max_pods\?.*",
            id="a variable's prefix is misspelt",
        ),
        pytest.param(
            ALL, "^kube_binaries_url: .*", "kube_binaries_url: http://mirror.example.com/kube",
            r".*all.yml:\d+, .*: kube_binaries_url still has a placeholder, .*; give the URL of your mirror .*",
            id="a placeholder is left",
        ),
        pytest.param(
            "hosts.yml", "^ +etcd-3: .*\n", "",
            r".*hosts.yml:\d+, etcd-1, etcd-2: the group etcd has 2 hosts, but an etcd cluster has 1, 3, 5 or 7; .*",
            id="etcd has two members",
        ),
        pytest.param(
            "hosts.yml", "^( +)(gpu-1: .*\n)",
            r"\1\2\1api-2: {fleet_place: {rack: r1}, pod_network_range: 198.19.64.0/24}\n",
            r".*hosts.yml:\d+, api-2: is in the exclusive groups kube_apiserver and gpu_nodes; "
            r"a host may be in one of them only: take it out of the others",
            id="a host has two exclusive jobs",
        ),
        pytest.param(
            ALL, r"muster\.fleet\.sha256sums \}\}$",
            r"muster.fleet.sha256sums | dict2items | rejectattr('key', 'eq', 'kubelet') | items2dict }}",
            r".*all.yml:\d+, gpu-1, gpu-2, gpu-3, system-1: kube_binaries_checksums has no entry for kubelet; "
            r"add its SHA-256 .*",
            id="a binary has no checksum",
        ),
    ],
)  # fmt: skip
def test_the_inventory_check_refuses(refused: Refused, name: str, old: str, new: str, expected: str) -> None:
    problem = refused((name, old, new))
    assert re.fullmatch(expected, problem), problem


def test_a_host_key_that_is_not_the_one_in_the_inventory(refused: Refused) -> None:
    fingerprint = f"SHA256:{'Ab' * 21}A"
    problem = refused(("hosts.yml", ETCD_2, rf"\1fleet_host_key_fingerprint: '{fingerprint}', "))
    assert re.match(rf"etcd-2: .*, but the inventory expects {fingerprint}; .*correct fleet_host_key_", problem), (
        problem
    )


def test_a_host_key_that_has_changed_even_where_new_hosts_are_trusted(
    fleet: Fleet, refused: Refused, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    lines = (fleet.state / "known_hosts").read_text().splitlines()
    mine, other = (next(line for line in lines if fleet.addresses[host] in line) for host in ("etcd-2", "etcd-3"))
    known.write_text("\n".join(line for line in lines if line not in (mine, other)))
    with known.open("a") as file:
        file.write(f"\n{' '.join([mine.split()[0], *other.split()[1:]])}\n{other}\n")
    before = known.read_text()
    problem = refused((ALL, KNOWN_HOSTS, rf"\1{known}"))
    assert re.match(rf"etcd-2: .*, but {known} has .*; find out why; only if this machine was really ", problem), (
        problem
    )
    assert known.read_text() == before


def test_a_login_key_that_the_host_does_not_know(refused: Refused, tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    problem = refused(("hosts.yml", ETCD_2, rf"\1ansible_ssh_private_key_file: {key}, "))
    assert re.match(rf"etcd-2: .*{key}.*; ", problem), problem


def test_a_disk_that_carries_something_else(refused: Refused) -> None:
    problem = refused(("hosts.yml", ETCD_2, r"\1local_ssd_label: other, "), last_play=LOOK)
    expected = (
        r"etcd-2: local_ssd_device /dev/disk/by-id/virtio-etcd-data \(loop\d+\) is mounted on /var/lib/etcd but holds "
        r"ext4 labelled 'muster-ssd', not the ext4 labelled 'other' this role makes; unmount it first"
    )
    assert re.fullmatch(expected, problem), problem


def test_a_mirror_that_cannot_be_reached_when_there_is_something_to_fetch(refused: Refused) -> None:
    # Each host itself, where nobody listens: all ask, and of the mirror's own address the nodes' firewall would tell.
    mirror = "http://127.0.0.1:81/current"
    problem = refused(
        (ALL, "^kube_binaries_url: .*", f"kube_binaries_url: {mirror}"),
        (ALL, r"(muster\.fleet\.sha256sums) \}\}$", rf"\1 {NEW_ETCDCTL} }}}}"),
        last_play=LOOK,
    )
    expected = (
        rf"etcd-1, etcd-2, etcd-3, etcd-events-1: the mirror {mirror} cannot be reached: .*Connection refused; "
        r"start it, let the host reach it, or correct kube_binaries_url"
    )
    assert re.fullmatch(expected, problem), problem
