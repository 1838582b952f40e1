"""The role nvidia_driver reboots a few hosts at a time, and never all of a group: its own expression, task and Ansible.

Hosts are names on this machine, and a reboot is a script that waits for others and writes down when it began and ended.

Only here: that Ansible's throttle with the role's expression never has all hosts of a group down.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = Path(__file__).resolve().parents[3] / "roles/nvidia_driver"
Playbook = Callable[..., subprocess.CompletedProcess[str]]
# argv: the log, the host, how many must have been down together for it to end at once, and its longest time.
REBOOT = """\
import sys, time
from itertools import accumulate
from pathlib import Path
log, host, enough, longest = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
def note(word):
    with log.open("a") as file:
        file.write(f"{word} {host}\\n")
note("down")
until = time.monotonic() + longest
while time.monotonic() < until:
    counts = accumulate(1 if line.startswith("down") else -1 for line in log.read_text().splitlines())
    if max(counts) >= enough:
        break
    time.sleep(0.02)
note("up")
"""


def at_once(hosts: int, most: int | None = None) -> int:
    """What the role's own expression gives for a group of so many hosts."""
    own: dict[str, Any] = {}
    for name in ("defaults", "vars"):
        own |= yaml.safe_load((ROLE / f"{name}/main.yml").read_text())
    own = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in own.items()}
    own |= {"ansible_play_hosts_all": [f"gpu-{n}" for n in range(hosts)]}
    own |= {} if most is None else {"nvidia_driver_reboot_max": most}
    return int(
        Templar(loader=DataLoader(), variables=own).template(trust_as_template("{{ __nvidia_driver_reboot_hosts }}"))
    )


@pytest.mark.parametrize(
    ("hosts", "most", "expected"),
    [
        # A host that is alone gets its reboot; Ansible takes 0 for no limit.
        (1, None, 1),
        (2, None, 1),
        (3, None, 1),
        (4, None, 2),
        (19, None, 9),
        (100, None, 10),
        (100, 80, 50),
        (100, 1, 1),
        (100, 0, 1),
        (3, 100, 1),
    ],
)
def test_the_hosts_at_once(hosts: int, most: int | None, expected: int) -> None:
    assert at_once(hosts, most) == expected


def play(folder: Path, ansible_playbook: Playbook, hosts: int, enough: int, longest_s: float, throttled: bool) -> int:
    """The role's task on so many hosts, with a script for the reboot; how many were down at once."""
    task, *_ = yaml.safe_load((ROLE / "tasks/reboot.yml").read_text())
    assert task.pop("ansible.builtin.reboot")
    (folder / "reboot.py").write_text(REBOOT)
    log = folder / "log"
    log.touch()
    argv = [sys.executable, f"{folder}/reboot.py", str(log), "{{ inventory_hostname }}", str(enough), str(longest_s)]
    # Raw: without the Python of a module before that of the script.
    task["ansible.builtin.raw"] = shlex.join(argv)
    if not throttled:
        assert task.pop("throttle")
    files = [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml")]
    whole = {"hosts": "all", "gather_facts": False, "vars_files": files, "tasks": [task]}
    (folder / "play.yml").write_text(yaml.safe_dump([whole]))
    names = [f"gpu-{n}" for n in range(hosts)]
    done = ansible_playbook("play.yml", "-f", str(hosts), inventory=",".join([*names, ""]))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = log.read_text().splitlines()
    assert sorted(line for line in lines if line.startswith("up")) == [f"up {name}" for name in names]
    return max(accumulate(1 if line.startswith("down") else -1 for line in lines))


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "most"), [(2, 1), (5, 2)])
def test_never_all_hosts_of_a_group_are_down(tmp_path: Path, ansible_playbook: Playbook, hosts: int, most: int) -> None:
    """A reboot lasts until one host too many is down, or for a second: time for that one to go down."""
    assert play(tmp_path, ansible_playbook, hosts, most + 1, 1.0, throttled=True) <= most


@pytest.mark.slow
def test_all_hosts_are_down_at_once_without_the_limit(tmp_path: Path, ansible_playbook: Playbook) -> None:
    """What shows that the test above can fail."""
    assert play(tmp_path, ansible_playbook, 5, 5, 60.0, throttled=False) == 5
