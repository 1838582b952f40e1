"""A lab whose hosts are gone starts again: a run of it was killed, or the machine was started anew since.

Only here: podman and mounts of a lab whose hosts are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu_burnin.fleet.mirror.commands import run
from tests.lab import hosts, machine
from tests.lab.model import Lab, read_lab

INVENTORY = """\
all:
  hosts:
    host-1: {ansible_host: 198.18.90.11}
  vars:
    fleet_name: cut
    lab_subnet: 198.18.90.0/24
    lab_mirror_address: 198.18.90.5
"""


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of one host and its mirror."""
    inventory = tmp_path_factory.mktemp("cut") / "hosts.yml"
    inventory.write_text(INVENTORY)
    lab = read_lab([inventory])
    try:
        yield lab
    finally:
        hosts.down(lab)


def containers(lab: Lab) -> list[str]:
    """The ids of its containers."""
    return run(["podman", "ps", "--all", "--quiet", "--filter", f"label=muster.lab={lab.name}"]).split()


def without_containers(lab: Lab) -> None:
    run(["podman", "rm", "--force", "--time", "0", *containers(lab)])


def without_mounts(lab: Lab) -> None:
    """As after a start of the machine: podman still knows the containers."""
    run(["podman", "kill", *containers(lab)])
    for directory in sorted((lab.state / "hosts").glob("*")):
        machine.unmount_below(directory)


@pytest.mark.parametrize("lose", [without_containers, without_mounts])
def test_a_lab_whose_hosts_are_gone_is_made_anew(
    cut: Lab, lose: Callable[[Lab], None], capfd: pytest.CaptureFixture[str]
) -> None:
    hosts.up(cut)
    kept = cut.state / "fleet" / "known_hosts"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("the host keys of before")
    lose(cut)
    capfd.readouterr()
    hosts.up(cut)
    assert "lab cut: gone since an earlier run: host-1, mirror; all is made anew" in capfd.readouterr().err
    assert hosts.status(cut) == {"host-1": "running"} and not kept.exists()


def test_a_lab_that_runs_stays_as_it_is(cut: Lab) -> None:
    hosts.up(cut)
    before = containers(cut)
    hosts.up(cut)
    assert containers(cut) == before
