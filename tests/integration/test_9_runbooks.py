"""Commands by which the runbooks look at a host of the fleet, as they stand there, on the hosts of the lab.

Only here: commands of the runbooks, word for word, on hosts.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY
from tests.support.runbooks import PAGES, commands

from .fleet import Fleet, run

# Command, where it is given, and what it says.
LOOKS = (
    ("systemctl status gpu-burnin-watch", "gpu-1", "active (running)"),
    ("journalctl -u gpu-burnin-watch -b", "gpu-1", "gpu-burnin"),
    ("gpu-burnin gate", "gpu-1", ""),
    ("gpu-burnin gate --under-test", "gpu-1", ""),
    ("gpu-burnin gate --cluster", "gpu-1", ""),
    ("gpu-burnin status", "gpu-1", "PASS"),
    ("dcgmi health --host unix:///run/nvidia-dcgm/nv-hostengine -c", "gpu-1", "Healthy"),
    ("dcgmi discovery --host unix:///run/nvidia-dcgm/nv-hostengine --list", "gpu-1", "GPU-"),
    ("nvidia-ctk cdi list", "gpu-1", "nvidia.com/gpu"),
    ("journalctl -u kube-scheduler -u kube-controller-manager", "api-1", "kube-scheduler"),
    ("cd /etc/kubernetes/admission && sha256sum --check SHA256SUMS", "api-1", "OK"),
    ("systemctl status muster-gate-probe.timer muster-gate-probe.service", "api-1", "muster-gate-probe.timer"),
    ("muster gate-probe", "api-1", ""),
    ("journalctl -u muster-gate-probe -o cat", "api-1", ""),
    ("openssl x509 -noout -enddate -in /etc/kubernetes/pki/apiserver.crt", "api-1", "notAfter="),
    ("journalctl -u muster-admitter -o cat", "api-1", ""),
    ("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub", "api-1", "SHA256:"),
    ("journalctl -u prometheus -u prometheus-alertmanager", "mon-1", "prometheus-alertmanager"),
)
# Of Ansible, from the controller.
AD_HOC = tuple(one.line for page in PAGES for one in commands(page) if one.parts[0][0] == "ansible")


def test_they_stand_in_the_runbooks() -> None:
    lines = {command.line.removeprefix("ssh gpu-1 ") for page in PAGES for command in commands(page)}
    assert {command for command, _, _ in LOOKS} <= lines


@pytest.mark.parametrize(("command", "host", "says"), LOOKS, ids=[command for command, _, _ in LOOKS])
def test_it_shows_what_the_page_gives_it_for(fleet: Fleet, command: str, host: str, says: str) -> None:
    done = fleet.ssh(host, command)
    # A unit that ran and ended is 3 for systemctl.
    assert done.rc in ((0, 3) if command.startswith("systemctl status") else (0,)), done.err or done.out
    assert says in done.out


@pytest.mark.parametrize("command", AD_HOC)
def test_an_ad_hoc_command_reaches_the_lab(fleet: Fleet, tmp_path: Path, command: str) -> None:
    """As it stands, but for the inventory. Those that bring files put them into a folder of their own."""
    _, _, _, *words = shlex.split(command.replace("dest=audit/", f"dest={tmp_path}/"))
    done = run([str(Path(sys.executable).parent / "ansible"), "-i", str(LAB_INVENTORY), *words], cwd=REPOSITORY)
    assert done.rc == 0, done.out + done.err
    brought = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("audit.log")}
    assert brought == ({"api-1", "api-2"} if "dest=audit/" in command else set())
