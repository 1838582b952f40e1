"""Callback: keeps what each play did to each host, for `muster why`, and its rates, for `muster baseline`."""

from __future__ import annotations

import getpass
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible.template import Templar

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet import REPORTS
from gpu_burnin.fleet.history import FILE, KEPT_S, Play, Result, record
from gpu_burnin.report.file_names import REPORT

DOCUMENTATION = r"""
name: history
type: aggregate
short_description: Keep what each play did to each host, and the rates of the reports that it fetched
version_added: "0.2.0"
description:
  - Writes how many tasks of a play were ok, changed, failed, skipped or unreachable on each host, the first that
    failed, and the last that had the machine boot, into C(history.sqlite3) in the inventory's C(fleet_state_dir), when
    the play ends. C(muster why) reads it.
  - Writes the rates of burn-in reports that a play fetched into C(rates.sqlite3) beside it, one point a week for each
    host, kept for half a year. C(muster baseline) reads it.
  - Results are kept for a year. Where C(fleet_state_dir) is not set, or is no folder (yet), nothing is written.
  - What cannot be written is one warning, and the run goes on. A damaged file is set aside under a new name.
requirements:
  - C(muster.fleet.history) in C(callbacks_enabled) in C(ansible.cfg).
author:
  - Muster (@muster)
"""

# Actions that have the machine boot, by their last name, and what each says when it did.
_HAVE_IT_BOOT = {"reboot": "rebooted", "bmc_power": "done"}


class CallbackModule(CallbackBase):
    """Counts as the results come, and writes once for each play."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "muster.fleet.history"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._run = str(uuid.uuid4())
        self._playbook = ""
        self._directory: Path | None = None
        self._name = self._began = ""
        self._results: dict[str, Result] = {}
        self._reports: list[Path] = []
        self._boots: dict[str, str] = {}

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Keep the playbook's name."""
        self._playbook = Path(str(playbook._file_name)).name

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Write the play before, and begin with this one."""
        self._write()
        self._name, self._began = play.get_name(), _now()
        self._directory = _state_dir(play)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Keep when a task began that has a machine boot: it is over when the machine is back."""
        if _last_name(task) in _HAVE_IT_BOOT:
            self._boots[host.name] = _now()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Count a task that was ok, or changed something."""
        found = self._of(result)
        self._keep_boot(result, found)
        found.ok += 1
        found.changed += result.is_changed()
        if result.is_changed():
            self._reports += _fetched(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Count a task that was skipped."""
        self._of(result).skipped += 1

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Count a task that failed, unless that is passed over, which Ansible counts as ok."""
        found = self._of(result)
        self._keep_boot(result, found)
        if ignore_errors:
            found.ok += 1
            found.changed += result.is_changed()
        else:
            found.failed += 1
            found.fail(result.task_name, str(result.result.get("msg") or ""))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Count a host that could not be reached."""
        found = self._of(result)
        found.unreachable += 1
        found.fail(result.task_name, str(result.result.get("msg") or ""))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the last play."""
        self._write()

    def _of(self, result: Any) -> Result:
        return self._results.setdefault(result.host.name, Result())

    def _keep_boot(self, result: Any, found: Result) -> None:
        """Keep that the task had the machine boot, also where it then waited in vain for it to come back."""
        says = _HAVE_IT_BOOT.get(_last_name(result.task))
        if says and result.result.get(says) and (began_at := self._boots.get(result.host.name)):
            found.reboot(result.task_name, began_at)

    def _write(self) -> None:
        results, self._results = self._results, {}
        reports, self._reports = self._reports, []
        if not results or self._directory is None or not self._directory.is_dir():
            return
        now = datetime.now(UTC)
        arguments = context.CLIARGS
        play = Play(
            run=self._run,
            playbook=self._playbook,
            name=self._name,
            who=_user(),
            only_hosts=str(arguments.get("subset") or ""),
            check_mode=bool(arguments.get("check")),
            started_at=self._began,
            ended_at=_now(),
        )
        try:
            problem = record(self._directory / FILE, play, results, _text(now - timedelta(seconds=KEPT_S)))
        except GpuBurninError as error:
            problem = str(error)
        if problem:
            self._display.warning(problem)
        if reports:
            self._keep_rates(self._directory, reports, now)

    def _keep_rates(self, directory: Path, reports: list[Path], now: datetime) -> None:
        from gpu_burnin.fleet.baseline import rates  # it needs numpy, which most plays do without

        try:
            problems = rates.take_in(directory / rates.FILE, reports, now).problems
        except GpuBurninError as error:
            problems = [str(error)]
        for problem in problems:
            self._display.warning(problem)


def _last_name(task: Any) -> str:
    """The action of a task without its collection."""
    return str(task.action).rpartition(".")[2]


def _fetched(result: Any) -> list[Path]:
    """The reports of the burn-in that a task has brought to the controller, as REPORTS/HOST/report.json."""
    if not str(result.task.action).endswith("fetch"):
        return []
    found = result.result
    places = [Path(str(one.get("dest") or "")) for one in found.get("results") or [found]]
    return [place for place in places if place.name == REPORT and place.parents[1].name == REPORTS]


def _state_dir(play: Any) -> Path | None:
    """The inventory's fleet_state_dir, None where it is not set or cannot be made out."""
    manager = play.get_variable_manager()
    inventory = manager._inventory
    host = inventory.get_host("localhost") or next(iter(inventory.hosts.values()), None)
    variables = manager.get_vars(play=play, host=host)
    if "fleet_state_dir" not in variables:
        return None
    try:
        found = Templar(loader=play._loader, variables=variables).template(variables["fleet_state_dir"])
    except Exception:  # whatever a variable of the inventory may raise: the play that needs it says so
        return None
    return Path(str(found)) if found else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user
        return ""


def _now() -> str:
    return _text(datetime.now(UTC))


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
