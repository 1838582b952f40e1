"""Whom an alert is told, by its severity: the real amtool with what the role writes.

Only here: Alertmanager takes the role's file, with each choice of receivers, and its own routing is asked.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.image import ensure_image
from tests.support.monitoring_files import render

from .monitoring_pair import VARIABLES

PAGES = {"fleet_monitoring_receiver": {"webhook_configs": [{"url": "http://127.0.0.1:9/"}]}}
TICKETS = {"fleet_monitoring_ticket_receiver": {"webhook_configs": [{"url": "http://127.0.0.1:9/tickets"}]}}
# What a host is given, by its name.
GIVEN: Mapping[str, Mapping[str, Any]] = {
    "nobody": {},
    "one-for-both": PAGES,
    "tickets-alone": TICKETS,
    "each-its-own": PAGES | TICKETS,
}


def _amtool(*arguments: object) -> str:
    command = [str(ensure_image() / "usr" / "bin" / "amtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The folder of each host, by one run of Ansible."""
    chosen = {
        name: f"{{{{ given[inventory_hostname].{name} | default({{}}) }}}}"
        for name in ("fleet_monitoring_receiver", "fleet_monitoring_ticket_receiver")
    }
    hosts = {name: {"ansible_host": f"127.0.0.{number}"} for number, name in enumerate(GIVEN, 1)}
    return render(tmp_path_factory.mktemp("routes"), hosts, {**VARIABLES, "given": GIVEN, **chosen})


@pytest.mark.parametrize(
    ("host", "page", "ticket"),
    [
        ("nobody", "site", "site"),
        ("one-for-both", "site", "site"),
        ("tickets-alone", "site", "tickets"),
        ("each-its-own", "site", "tickets"),
    ],
)
def test_a_ticket_wakes_nobody(written: Mapping[str, Path], host: str, page: str, ticket: str) -> None:
    file = written[host] / "alertmanager.yml"
    assert file.read_text().count("webhook_configs") == len(GIVEN[host])
    _amtool("check-config", file)
    for severity, receiver in (("page", page), ("ticket", ticket)):
        labels = ("alertname=MusterHostDown", f"severity={severity}", "instance=gpu-1")
        assert _amtool("config", "routes", "test", f"--config.file={file}", *labels) == receiver
