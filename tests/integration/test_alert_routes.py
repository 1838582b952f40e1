"""Whom an alert is told, by its severity: the real amtool with what the role writes."""

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


def _amtool(*arguments: object) -> str:
    command = [str(ensure_image() / "usr" / "bin" / "amtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("given", "page", "ticket"),
    [
        ({}, "site", "site"),
        (PAGES, "site", "site"),
        (TICKETS, "site", "tickets"),
        (PAGES | TICKETS, "site", "tickets"),
    ],
    ids=["nobody", "one for both", "tickets alone", "each its own"],
)
def test_a_ticket_wakes_nobody(given: Mapping[str, Any], page: str, ticket: str, tmp_path: Path) -> None:
    written = render(tmp_path, {"mon-1": {"ansible_host": "127.0.0.1"}}, {**VARIABLES, **given})["mon-1"]
    file = written / "alertmanager.yml"
    _amtool("check-config", file)
    for severity, receiver in (("page", page), ("ticket", ticket)):
        labels = ("alertname=MusterHostDown", f"severity={severity}", "instance=gpu-1")
        assert _amtool("config", "routes", "test", f"--config.file={file}", *labels) == receiver
