"""kube_health: when an answer passes, how long it asks, what its errors say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.kube.health import (
    Answer,
    Check,
    Server,
    context_of,
    judge,
    message,
    wait,
)

from tests.support.server_helpers import QuietHandler, listening


class Component(QuietHandler):
    """Ready from the third question on; a PATCH is refused with a reason."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.reply(200 if len(self.asked) >= 3 else 500, b"ok")

    def do_PATCH(self) -> None:
        self.asked.append(self.body().decode())
        self.reply(403, b"denied by muster-node-gate")


@pytest.fixture
def component() -> Iterator[tuple[Server, list[str]]]:
    asked: list[str] = []
    with listening(type("Handler", (Component,), {"asked": asked})) as url:
        yield Server(url), asked


@pytest.mark.parametrize(
    ("check", "answer", "reason"),
    [
        (Check("/x"), Answer(200, "ok"), None),
        (Check("/x"), Answer(500, "etcd  not\nready"), "answered 500 instead of 200: etcd not ready"),
        (Check("/x", status=403, contains="gate"), Answer(403, "the gate"), None),
        (Check("/x", status=403, contains="gate"), Answer(201, "created"), "answered 201 instead of 403: created"),
        (Check("/x", contains="gate"), Answer(200, "other"), "answered 200 without 'gate': other"),
        (Check("/x", matches="a+b"), Answer(200, "xaab"), None),
        (Check("/x", matches="a+b"), Answer(200, "xb"), "answered 200 with nothing that matches 'a+b'"),
        (Check("/x"), Answer(500, "y" * 400), "answered 500 instead of 200: " + "y" * 300 + "..."),
    ],
)
def test_judge(check: Check, answer: Answer, reason: str | None) -> None:
    assert judge(check, answer) == reason


def test_asks_until_the_answer_is_right(component: tuple[Server, list[str]]) -> None:
    server, asked = component
    assert wait(server, [Check("/readyz?exclude=a&exclude=b")], 10, interval_s=0.01) is None
    assert asked == ["/readyz?exclude=a&exclude=b"] * 3


def test_sends_a_body(component: tuple[Server, list[str]]) -> None:
    server, asked = component
    check = Check("/nodes", method="PATCH", body={"kind": "Node"}, status=403, contains="gate")
    assert wait(server, [check], 0) is None
    assert asked == ['{"kind": "Node"}']


def test_all_checks_must_pass_in_one_round(component: tuple[Server, list[str]]) -> None:
    server, _ = component
    failure = wait(server, [Check("/a", status=500), Check("/b", status=418)], 0)
    assert failure is not None and failure.check.path == "/b"


def test_ends_at_the_deadline_and_says_why() -> None:
    now = iter(range(100))
    server = Server("http://127.0.0.1:9")
    pauses: list[float] = []
    check = Check("/readyz", hint="look at the log")
    failure = wait(server, [check], 5, clock=lambda: float(next(now)), pause=pauses.append)
    assert failure is not None and pauses
    text = message(server, failure, 5)
    assert text.startswith("http://127.0.0.1:9/readyz gave no answer: ")
    assert text.endswith("(asked for 5 s); look at the log")


@pytest.mark.parametrize("url", ["ftp://host", "https://", "127.0.0.1:6443", "https://host/path"])
def test_refuses_what_is_no_server(url: str) -> None:
    with pytest.raises(FleetError, match="not a server URL"):
        wait(Server(url), [Check("/")], 0)


@pytest.mark.parametrize("check", [Check("readyz"), Check("/x", matches="(")])
def test_refuses_a_malformed_check(check: Check) -> None:
    with pytest.raises(FleetError):
        wait(Server("http://127.0.0.1:9"), [check], 0)


def test_unusable_certificates_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.crt")
    with pytest.raises(FleetError, match=r"ca\.crt.*cannot be used"):
        context_of(Server("https://127.0.0.1:1", ca=missing))
