"""Reading systemd's answers, and which files are newer than a process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit as su

SHOW = """LoadState=loaded
ActiveState=active
SubState=running
Result=success
UnitFileState=enabled
NeedDaemonReload=no
MainPID=42
FragmentPath=/etc/systemd/system/etcd.service
DropInPaths=/etc/systemd/system/etcd.service.d/a.conf /etc/systemd/system/etcd.service.d/b.conf
"""


def test_parse_show() -> None:
    unit = su.parse_show("etcd.service", SHOW, 100.0)
    assert (unit.loaded, unit.running, unit.enabled, unit.needs_reload) == (True, True, True, False)
    assert len(unit.files) == 3


@pytest.mark.parametrize(
    ("change", "attribute", "value"),
    [
        (("LoadState=loaded", "LoadState=not-found"), "loaded", False),
        (("ActiveState=active", "ActiveState=failed"), "running", False),
        (("ActiveState=active", "ActiveState=inactive"), "running", False),
        (("ActiveState=active", "ActiveState=activating"), "running", True),
        (("UnitFileState=enabled", "UnitFileState=disabled"), "enabled", False),
        (("NeedDaemonReload=no", "NeedDaemonReload=yes"), "needs_reload", True),
    ],
)
def test_parse_show_other_states(change: tuple[str, str], attribute: str, value: bool) -> None:
    assert getattr(su.parse_show("x", SHOW.replace(*change), None), attribute) is value


def test_process_started_at_with_a_hostile_name() -> None:
    line = "42 (a) b (c) S " + " ".join(["0"] * 18) + " 5000 0 0"
    assert su.process_started_at(line, uptime_s=100.0, now=1000.0, ticks_per_second=100) == 950.0


def test_own_start_is_about_right() -> None:
    started = su._started_at(os.getpid())
    assert started is not None
    assert time.time() - 3600 * 24 < started <= time.time()
    assert su._started_at(2**22 + 1) is None


def test_newer_files() -> None:
    modified = {"/old": 10.0, "/new": 30.0, "/future": 99.0, "/same": 20.0}
    assert su.newer_files(20.0, modified, now=50.0) == ["/new"]


def test_modification_times_goes_into_folders(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_text("x")
    (tmp_path / "g").write_text("x")
    found = su.modification_times([str(tmp_path / "d"), str(tmp_path / "g"), str(tmp_path / "none")])
    assert sorted(found) == [str(tmp_path / "d/e/f"), str(tmp_path / "g")]


def test_stale_only_with_a_process(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("x")
    before = time.time() - 60
    unit = su.parse_show("x", "LoadState=loaded\nFragmentPath=\n", before)
    assert su.stale_because(unit, [str(tmp_path / "conf")]) == [str(tmp_path / "conf")]
    assert su.stale_because(su.parse_show("x", "", None), [str(tmp_path / "conf")]) == []
    assert su.stale_because(su.parse_show("x", "", time.time() + 1), [str(tmp_path / "conf")]) == []


def test_a_systemd_that_hangs_ends_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("systemctl", "journalctl"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(su, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(su, "_LOG_TIMEOUT_S", 0.1)
    with pytest.raises(
        FleetError, match=r"`systemctl start -- x` gave no answer in 0\.1 s; look at `systemctl list-jobs`"
    ):
        su.systemctl(["start", "--", "x"])
    assert su.log_tail("x") == su.last_words("x", "y") == "journalctl gave no answer in 0.1 s"


def test_the_last_words_are_the_unit_s_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """journalctl's --unit has systemd's lines on the unit, too: `Failed to start`, after what the process said."""
    journal = tmp_path / "journalctl"
    journal.write_text(
        "#!/bin/sh\ncase $* in '_SYSTEMD_UNIT=x.service SYSLOG_IDENTIFIER=engine --lines 1 '*) echo Err: no GPU;;\n"
        "*) echo Failed to start x;; esac\n"
    )
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert su.log_tail("x.service") == "Failed to start x"
    assert su.last_words("x.service", "/usr/bin/engine") == "Err: no GPU"


class Folders:
    """systemd's folders of unit files below a root, and what `systemctl show` says of one unit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.etc, self.lib = root / "etc/systemd/system", root / "usr/lib/systemd/system"
        for folder in (self.etc, self.lib):
            folder.mkdir(parents=True)
        monkeypatch.setattr(su, "_FOLDERS", (str(self.etc), str(self.lib)))
        self.fragment = self.lib / "x.service"
        self.fragment.write_text("[Service]\nExecStart=/bin/true\n")
        monkeypatch.setattr(su, "systemctl", lambda arguments: self.shown)

    @property
    def shown(self) -> str:
        lines = [line for line in SHOW.splitlines() if not line.startswith(("FragmentPath", "MainPID", "DropInPaths"))]
        return "\n".join([*lines, f"FragmentPath={self.fragment}"])

    def link(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(self.lib / "x.service")


def test_a_unit_file_that_goes_before_the_one_read_needs_a_reload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Real systemd 252 says NeedDaemonReload=no of it, and a restart runs the package's program on."""
    folders = Folders(monkeypatch, tmp_path)
    assert not su.show("x.service").needs_reload
    (folders.etc / "x.service").write_text("[Service]\nExecStart=/usr/local/bin/true\n")
    assert su.show("x.service").needs_reload
    folders.fragment = folders.etc / "x.service"
    assert not su.show("x.service").needs_reload, "systemd has read it"
    folders.fragment = Path("/run/systemd/transient/x.service")
    assert not su.show("x.service").needs_reload, "this one goes before it"


def test_an_alias_is_no_other_unit_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = Folders(monkeypatch, tmp_path)
    folders.link(folders.etc / "alias.service")
    assert not su.show("alias.service").needs_reload


@pytest.mark.parametrize("key", ["WantedBy", "RequiredBy"])
def test_an_alias_s_link_alone_starts_nothing_at_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    """Debian's chrony has Alias=chronyd.service: with this link alone `systemctl is-enabled` says enabled."""
    folders = Folders(monkeypatch, tmp_path)
    assert su.show("x.service").enabled, "no [Install] asks for a link"
    folders.fragment.write_text(f"[Install]\nAlias=alias.service\n{key}=multi-user.target a@%i.target\n")
    folders.link(folders.etc / "alias.service")
    for name in ("x.service", "alias.service"):
        assert not su.show(name).enabled
    ending = {"WantedBy": "wants", "RequiredBy": "requires"}[key]
    folders.link(folders.etc / f"multi-user.target.{ending}/x.service")
    for name in ("x.service", "alias.service"):
        assert su.show(name).enabled


def test_a_link_of_this_boot_alone_is_not_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = Folders(monkeypatch, tmp_path)
    folders.fragment.write_text("[Install]\nWantedBy=multi-user.target\n")
    monkeypatch.setattr(su, "_FOLDERS", (str(folders.etc), str(folders.lib)))
    monkeypatch.setattr(su, "_VOLATILE", str(folders.etc))
    folders.link(folders.etc / "multi-user.target.wants/x.service")
    assert not su.show("x.service").enabled


def test_each_target_needs_its_link_and_an_instance_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = Folders(monkeypatch, tmp_path)
    folders.fragment = folders.lib / "y@.service"
    folders.fragment.write_text("[Install]\nWantedBy=a.target b.target\n")
    folders.link(folders.lib / "a.target.wants/y@1.service")
    assert not su.show("y@1.service").enabled
    folders.link(folders.etc / "b.target.wants/y@1.service")
    assert su.show("y@1.service").enabled


def test_who_leaves_the_start_to_the_next_boot_enables_alone() -> None:
    """The burn-in of a boot: it is run by who waits for its end."""
    unit = su.parse_show("x.service", SHOW.replace("=active", "=inactive").replace("=enabled", "=disabled"), None)
    wanted = su.Wanted("x.service", start=False, restart=False)
    assert su.decide(wanted, unit).actions == ("enable",)
    assert su.decide(su.Wanted("x.service"), unit).actions == ("enable", "start")


def test_a_unit_that_is_not_asked_for_any_more_is_taken_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[list[str]] = []
    shown = {"text": SHOW.replace("MainPID=42", "MainPID=0")}

    def systemctl(arguments: list[str]) -> str:
        told.append(arguments)
        return shown["text"]

    def done(*, act: bool = True) -> tuple[tuple[str, ...], list[str]]:
        told.clear()
        actions = su.take_down("x.timer", act=act, folder=str(tmp_path))
        return actions, [words[0] for words in told if words[0] != "show"]

    monkeypatch.setattr(su, "systemctl", systemctl)
    (tmp_path / "x.timer").write_text("[Timer]\n")
    whole = ("stop", "disable", "remove", "daemon-reload")
    assert done(act=False) == (whole, []) and (tmp_path / "x.timer").exists()
    assert done() == (whole, ["stop", "disable", "daemon-reload"]) and not (tmp_path / "x.timer").exists()
    # A run that was killed before systemd had read that the file is gone.
    assert done() == (("stop", "daemon-reload"), ["stop", "daemon-reload"])
    shown["text"] = (
        SHOW.replace("=loaded", "=not-found").replace("=active", "=inactive").replace("MainPID=42", "MainPID=0")
    )
    assert done() == ((), [])
