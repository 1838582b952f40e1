"""What a host says of one program: of the process, of the file in its place, and of the one that lies ready."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.etcd.api import Health
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.systemd_unit import parse_show
from ansible_collections.muster.fleet.plugins.module_utils.kube.upgrade_fleet import host_of
from ansible_collections.muster.fleet.plugins.modules import upgrade_facts
from ansible_collections.muster.fleet.plugins.modules.upgrade_facts import ADMITTER, program


def place(path: Path, version: str) -> str:
    """A program that says this version; its SHA-256."""
    text = f"#!/bin/sh\necho Kubernetes v{version}\n"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("process", "installed", "ready", "expected"),
    [
        ("1.36.1", "1.36.1", "1.36.3", {"running": "1.36.1", "wanted": "1.36.3", "current": False}),
        # The file is new and its process was not started again: a run that was killed between the two.
        ("1.36.1", "1.36.3", "", {"running": "1.36.1", "wanted": "1.36.3", "current": False}),
        ("1.36.3", "1.36.3", "", {"running": "1.36.3", "wanted": "1.36.3", "current": True}),
        # The kubelet of a held node does not run, and has the right file.
        ("", "1.36.3", "", {"running": "", "wanted": "1.36.3", "current": True}),
        ("", "1.36.1", "1.36.3", {"running": "", "wanted": "1.36.3", "current": False}),
        ("", "", "", {"running": "", "wanted": "", "current": False}),
    ],
)
def test_program(tmp_path: Path, process: str, installed: str, ready: str, expected: dict[str, object]) -> None:
    folders = {"process": process, "installed": installed, "ready": ready}
    for folder, version in folders.items():
        if version:
            place(tmp_path / folder / "kubelet", version)
    sha256 = place(tmp_path / "pinned/kubelet", "1.36.3")
    of = tmp_path / "process/kubelet" if process else None
    assert program("kubelet", sha256, tmp_path / "installed", tmp_path / "ready", of) == expected


def test_a_plan_reads_what_a_host_says() -> None:
    programs = {"etcd": {"running": "", "wanted": "3.7.3", "current": False}}
    found = {"programs": programs, "sick": "no leader", "served": False, "leads": True, "room": "has none"}
    host = host_of("etcd-1", found | {"closed": False})
    assert (host.served, host.leads, host.room, host.closed) == (False, True, "has none", False)
    assert (host.sick, host.programs["etcd"].running, str(host.programs["etcd"].wanted)) == ("no leader", None, "3.7.3")


def test_what_lies_ready_and_is_not_installed_needs_room(tmp_path: Path) -> None:
    ready, installed = tmp_path / "ready", tmp_path / "bin"
    assert upgrade_facts.room({}, installed, ready, 0) == ""
    checksums = {name: place(ready / name, name * 1_000_000) for name in ("etcd", "etcdctl", "kubelet")}
    place(ready / "stale", "1" * 1_000_000)
    place(installed / "kubelet", "kubelet" * 1_000_000)
    place(installed / "etcd", "old")
    needed = sum((ready / name).stat().st_size for name in ("etcd", "etcdctl"))
    assert upgrade_facts.room(checksums, installed, ready, needed) == ""
    said = upgrade_facts.room(checksums, installed, ready, needed - 1)
    assert said == f"has 10 MiB free in {installed}, and etcd, etcdctl need 10"


@pytest.mark.parametrize(
    ("loaded", "state", "closed"),
    [
        ("loaded", "disabled", True),
        ("loaded", "enabled", False),
        # A fleet without standing admission has nothing to close.
        ("not-found", "", False),
    ],
)
def test_admission_is_closed_where_the_admitter_is_disabled(
    monkeypatch: pytest.MonkeyPatch, loaded: str, state: str, closed: bool
) -> None:
    """Whether it runs does not say it: one that has failed is no sign of an upgrade."""
    unit = parse_show(ADMITTER, f"LoadState={loaded}\nUnitFileState={state}\nActiveState=failed", None)
    monkeypatch.setattr(upgrade_facts, "show", lambda name: unit)
    monkeypatch.setattr(upgrade_facts, "_sick", lambda given, member: "")
    assert looked(server="https://192.0.2.1:6443/readyz")["closed"] is closed
    assert looked()["closed"] is False


@pytest.mark.parametrize(
    ("began_s", "active_s", "booted_s", "served"),
    [
        # Each in seconds after the program was installed.
        (1.0, 2.0, -100.0, True),
        (1.0, None, -100.0, False),
        (None, None, -100.0, False),
        # It ran before, was active, and its successor has not been.
        (1.0, -50.0, -100.0, False),
        # The process is of the program before: of that one nobody knows.
        (-60.0, -50.0, -100.0, True),
        # Installed before the boot: it may have served in the one before.
        (1.0, None, 10.0, True),
    ],
)
def test_a_server_has_served_when_it_was_active_since_it_was_installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    began_s: float | None,
    active_s: float | None,
    booted_s: float,
    served: bool,
) -> None:
    place(tmp_path / "kube-apiserver", "1.37.0")
    at = (tmp_path / "kube-apiserver").stat().st_ctime
    unit = parse_show("kube-apiserver.service", "", None if began_s is None else at + began_s)
    monkeypatch.setattr(upgrade_facts, "show", lambda name: unit)
    monkeypatch.setattr(upgrade_facts, "active_at", lambda name: None if active_s is None else at + active_s)
    monkeypatch.setattr(upgrade_facts, "booted_at", lambda: at + booted_s)
    monkeypatch.setattr(upgrade_facts, "_sick", lambda given, member: "")
    monkeypatch.setattr(upgrade_facts, "_closed", lambda: False)
    assert looked(server="https://192.0.2.1:6443/readyz", directory=str(tmp_path))["served"] is served
    assert looked(directory=str(tmp_path))["served"] is True


def test_a_server_without_a_program_has_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade_facts, "_sick", lambda given, member: "")
    monkeypatch.setattr(upgrade_facts, "_closed", lambda: False)
    assert looked(server="https://192.0.2.1:6443/readyz", directory=str(tmp_path))["served"] is False


def test_a_host_that_does_not_run_what_was_installed_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart that was lost: the new file is there, and the old process."""
    place(tmp_path / "old/kubelet", "1.35.4")
    sha256 = place(tmp_path / "kubelet", "1.36.3")
    place_of = {"directory": str(tmp_path), "programs": ["kubelet"], "checksums": {"kubelet": sha256}}
    monkeypatch.setattr(upgrade_facts, "_process", lambda name: tmp_path / "old/kubelet")
    assert looked(**place_of)["programs"]["kubelet"]["current"] is False
    with pytest.raises(FleetError, match=r"kubelet 1\.35\.4 still runs, and not 1\.36\.3: see `systemctl"):
        looked(**place_of, expect=["kubelet"])
    monkeypatch.setattr(upgrade_facts, "_process", lambda name: tmp_path / "kubelet")
    assert looked(**place_of, expect=["kubelet"])["programs"]["kubelet"]["current"] is True


def looked(**of: Any) -> dict[str, Any]:
    """What a host without programs says."""
    given = {"programs": [], "checksums": {}, "directory": "/", "ready": "/", "etcd": "", "server": "", "expect": []}
    credentials = dict.fromkeys(("ca", "cert", "key"), "/")
    return upgrade_facts.observe(SimpleNamespace(params=given | credentials | of))  # type: ignore[arg-type]


@pytest.mark.parametrize("leads", [True, False])
def test_a_member_says_how_it_is_and_whether_it_leads(monkeypatch: pytest.MonkeyPatch, leads: bool) -> None:
    health = Health(False, "alarms are raised", leads=leads)
    monkeypatch.setattr(etcd_api, "probe", lambda endpoint, credentials, expect_members: health)
    found = looked(etcd="https://192.0.2.1:2379")
    assert (found["sick"], found["leads"]) == ("alarms are raised", leads)
    assert (looked()["sick"], looked()["leads"]) == ("", False)
