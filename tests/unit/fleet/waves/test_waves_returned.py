"""What a worker sends back that no shard sends: it loses its shard, with a sentence, and nothing of it is kept."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import far, near, places, returned, stream, worker
from gpu_burnin.fleet.waves.book import Book, hosts_file, keep_result, result_in
from gpu_burnin.fleet.waves.kinds import kind_of
from gpu_burnin.fleet.waves.model import HostResult, Order, Outcome, Part, Roll, StepResult
from gpu_burnin.fleet.waves.run import Executor
from gpu_burnin.system.codec import from_json, to_json

FAR = near.Far(places.Place("10.0.0.9", 22, "", "known_hosts"), "/root", "", "known_hosts")
_DEEP = "[" * 100_000


def _short(value: str) -> str:
    """The name of a case."""
    return value[:30]


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_what_the_callback_keeps_comes_through_for_the_hosts_of_the_shard(tmp_path: Path) -> None:
    sent = {
        "hosts": {
            "a": {
                "verdict": "FAIL",
                "codes": ["XID_FATAL"],
                "why": "",
                "gate": {"gate_open": False, "why": "\x1b]0;x"},
            },
            "b": {"failed": f"task: {'x' * 5000}"},
            "elsewhere": {"verdict": "PASS"},
        },
        "faults": [{"hosts": ["b"], "message": "no room", "code": "X"}],
        "cut": True,
        "admission": [{"name": "elsewhere", "state": "ready"}],
        "missing": {},
    }
    found = returned.outcomes(json.dumps(sent).encode(), ["a", "b"], 9999)
    assert found["hosts"]["a"] == {**sent["hosts"]["a"], "gate": {"gate_open": False, "why": "?]0;x"}}  # type: ignore[index]
    assert len(found["hosts"]["b"]["failed"]) == 1000 and set(found["hosts"]) == {"a", "b"}
    assert found["faults"] == [{"hosts": ["b"], "message": "no room"}] and found["cut"] is True
    assert set(found) == {"hosts", "faults", "cut"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '"x"',
        "\xff",
        _DEEP,
        '{"hosts": []}',
        '{"hosts": {"a": []}}',
        '{"hosts": {"a": {"failed": {}}}}',
        '{"hosts": {"a": {"verdict": "FAIL", "codes": [1]}}}',
        '{"hosts": {"a": {"gate": {"gate_open": {}}}}}',
        '{"faults": [{"hosts": "a", "message": "x"}]}',
        '{"cut": "yes"}',
        f'{{"a": "{"x" * (2 << 20)}"}}',
    ],
    ids=_short,
)
def test_outcomes_of_another_form_lose_the_shard(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {"rc": 0, "outcomes.json": content.encode("latin-1"), "reports/a/report.html": b"x"}
    monkeypatch.setattr(near, "stream", lambda *_: sent)
    monkeypatch.setattr(places, "ask", lambda *_: pytest.fail("its shard counts"))
    folder = shard(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_shard(folder, monkeypatch)
    why = (folder / "lost-why").read_text()
    assert ended.value.code == 3 and result_in(folder) is None
    assert why.startswith("the worker 10.0.0.9 sent an outcomes.json that is none (") and why.count("\n") == 1
    assert not (tmp_path / "reports").exists() and near.left_by(tmp_path / "roll"), "it is to be ended there"


def shard(tmp_path: Path) -> Path:
    """A shard of one host that is to run on a worker."""
    folder = tmp_path / "roll/steps/shard-0001"
    folder.mkdir(parents=True)
    (tmp_path / "roll/inventory.json").write_text("{}")
    far = near.Far(FAR.place, FAR.home, str(tmp_path), FAR.fleet_known_hosts)
    inventory = (str(tmp_path / "roll/inventory"),)
    job = worker.Job("shard-0001", Part.NODES, "burnin.yml", inventory, (), "/", far=far)
    worker.write_job(folder, to_json(job))
    hosts_file(folder).write_text("a\n")
    return folder


def run_shard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["worker", str(folder)])
    worker.main()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[]", "no JSON object"),
        ("7", "no JSON object"),
        ('{"a":' + _DEEP, "cannot be read"),
        ('{"rc": ' + "9" * 9999 + "}", "cannot be read"),
        ('{"\udcff": 1}', "cannot be read"),
        ('{"rc": "0"}', "exit code"),
        ('{"rc": true}', "exit code"),
        ('{"file": "outcomes.json"}', "not in base64"),
        ('{"file": "outcomes.json", "content": "x"}', "not in base64"),
        ('{"file": "outcomes.json", "content": []}', "not in base64"),
        (f'{{"file": "outcomes.json", "content": "{encoded(bytes(2000))}"}}', "more than 1000 bytes"),
        ('{"zipfile": 9}', "an archive"),
        (f'{{"a": [{"[]," * 3_000_000}0]}}', "more than 8388608 bytes and is no file"),
    ],
    ids=_short,
)
def test_a_line_that_no_shard_sends_loses_it(line: str, says: str, tmp_path: Path) -> None:
    source = tmp_path / "line"
    source.write_bytes(line.encode("utf-8", "surrogateescape") + b'\n{"rc": 0}\n{"eof": true}\n')
    with source.open("rb") as lines, pytest.raises(stream.Unfit, match=says):
        stream._process(stream._Lines(lines), str(tmp_path), stream.Log(io.BytesIO(), 99), expected())


def expected() -> stream.Expected:
    return stream.Expected({"outcomes.json", "b"}, {"turn"}, 1000)


def test_of_what_a_worker_sends_no_more_is_kept_than_is_expected_and_of_turns_that_they_are_there() -> None:
    kept = stream._Files(stream.Expected({"a", "b"}, {"turn"}, 10))
    for name in ("a", "a", "b", "turn", "other"):
        kept.take(name, encoded(b"12345"))
    assert kept.files == {"a": b"12345", "b": b"12345", "turn": b""}
    with pytest.raises(stream.Unfit, match="more than 10 bytes"):
        kept.take("a", encoded(b"123456"))


def test_the_log_of_a_shard_has_whole_lines_for_a_terminal_and_a_bound() -> None:
    file = io.BytesIO()
    log = stream.Log(file, 38)
    for text in ("\tfirst\nsecond \x1b[2J", "third is too long for it", "fourth", "fifth"):
        log.write(text)
    lines = file.getvalue().decode().splitlines()
    assert lines[:2] == [f"{'':8}first", "second ?[2J"] and len(lines) == 3, "nothing comes after what did not fit"
    assert lines[2] == "[WARNING]: this shard printed more than 38 bytes; no further line of it is kept"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exec yes", "it answered with more than 65536 bytes"),
        ("exec yes >&2", "it answered with more than 65536 bytes"),
        ("printf 'a\\033[2Jb\\n' >&2; exit 1", r"\(a\?\[2Jb\)"),
        ("exec sleep 9", "does not answer \\(not within 0.1 s\\)"),
    ],
)
def test_an_answer_of_a_worker_fills_no_memory_and_no_terminal(
    script: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "command", lambda *_: ["sh", "-c", script])
    monkeypatch.setattr(places, "_MOST_S", 0.1 if "sleep" in script else 60)
    with pytest.raises(GpuBurninError, match=says):
        places.ask(FAR.place, "/", "look", "/")


@pytest.mark.parametrize("answer", ["[]", _DEEP, '{"code": 1}', '{"code": "\\u001b", "cores": 1}'], ids=_short)
def test_an_answer_of_another_form_is_no_machine(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ask", lambda *_: answer)
    with pytest.raises(GpuBurninError, match=r"10\.0\.0\.9 gave an answer that cannot be read"):
        places.look(FAR.place, Path("/"))


def test_a_folder_of_sockets_that_another_user_has_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "sockets", lambda _: str(tmp_path / "made"))
    monkeypatch.setattr(far, "_Far", lambda **_: pytest.fail("it was run"))
    (tmp_path / "made").mkdir()
    before = os.umask(0o022)
    try:
        with pytest.raises(FileExistsError):
            far._run(str(tmp_path / "run"))
    finally:
        os.umask(before)
    assert not (tmp_path / "run").exists()


def test_neither_events_nor_errors_of_a_worker_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in place of ssh that prints a megabyte on each side."""
    event = json.dumps({"stdout": "x" * 99})
    program = (
        "import sys\n"
        "while sys.stdin.buffer.read(1) not in (b'', b'}'): pass\n"
        f"for _ in range(600): print({event!r}); print('y' * 99, file=sys.stderr)\n"
        "sys.stderr.flush(); print('{\"rc\": 0}'); print('{\"eof\": true}', flush=True)\n"
    )
    monkeypatch.setattr(places, "command", lambda *_: [sys.executable, "-c", program])
    private = tmp_path / "private"
    private.mkdir()
    with (tmp_path / "output.log").open("ab") as output:
        log = stream.Log(output, 4000)
        kwargs: dict[str, Any] = {"playbook": "none.yml"}
        found = stream.stream(FAR.place, "/", "run", str(private), kwargs, log, expected())
    assert found == {"rc": 0}
    lines = (tmp_path / "output.log").read_text().splitlines()
    assert set(lines[:-1]) <= {"x" * 99, "y" * 99} and len(lines) == 41, "whole lines"
    assert lines[-1].endswith("no further line of it is kept")


def test_what_a_worker_sent_is_said_when_its_shard_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    lost = threading.Event()

    class Process:
        """A shard's, which its worker lost once; the one here ends later, so that each has one."""

        def __init__(self, command: list[str], **_: object) -> None:
            self.folder = Path(command[-1])

        def wait(self) -> int:
            job = from_json(worker.Job, json.loads((self.folder / worker.STEP).read_text()))
            if job.far is not None:
                (self.folder / "lost-why").write_text("the worker 10.0.0.9 sent what no shard sends: 7\n")
                lost.set()
                return 3
            assert lost.wait(60)
            hosts = {name: HostResult(Outcome.DONE) for name in hosts_file(self.folder).read_text().split()}
            keep_result(self.folder, StepResult(job.name, 0, 1.0, 1.0, 1, hosts))
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    order = Order("burnin.yml", ("inv",))
    roll = Roll("1", "2026-11-28T00:00:00Z", order, "0", ((("a",), ("b",)),), {})
    executor = Executor(
        Book(tmp_path / "roll"), roll, kind_of(order.playbook), 1, tmp_path, "inv", said.append, far=(FAR,)
    )
    executor.run()
    assert [one.outcome for one in executor.results.values()] == [Outcome.DONE] * 2
    assert any(line.startswith("shard-") and "10.0.0.9 sent what no shard sends: 7; see " in line for line in said)
    assert [path.read_text() for path in tmp_path.rglob("lost")] == [
        "the worker 10.0.0.9 sent what no shard sends: 7\n"
    ]


@pytest.mark.parametrize("answers", ["yes", "no", "note cannot be read"])
def test_a_shard_whose_worker_does_not_answer_takes_no_place_of_this_machine(
    answers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only place is that of a shard which ends when the other one waits. Whom the worker keeps waiting is said."""
    waits, begun = threading.Event(), list[str]()

    class Process:
        """A shard's: on its worker it is lost."""

        def __init__(self, command: list[str], **_: object) -> None:
            self.folder = Path(command[-1])

        def wait(self) -> int:
            job = from_json(worker.Job, json.loads((self.folder / worker.STEP).read_text()))
            if job.far is not None:
                return 3
            begun.append(job.name)
            assert waits.wait(30), "the lost shard waits for this one"
            hosts = {name: HostResult(Outcome.DONE) for name in hosts_file(self.folder).read_text().split()}
            keep_result(self.folder, StepResult(job.name, 0, 1.0, 1.0, 1, hosts))
            return 0

    def end(folder: Path) -> str:
        says = "; ".join(executor._waits())
        assert f"the worker of {folder.name}; Ctrl-C again leaves that to the next call" in says
        assert f"{folder.name}; Ctrl-C again leaves them running" not in says
        waits.set()
        if answers == "note cannot be read":
            raise GpuBurninError(answers)
        return "" if answers == "yes" else f"{folder.name} may still run on 10.0.0.9"

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(near, "end_patiently", end)
    order = Order("burnin.yml", ("inv",), most_failed="2")
    roll = Roll("1", "2026-11-28T00:00:00Z", order, "0", ((("a",), ("b",)),), {})
    executor = Executor(
        Book(tmp_path / "roll"), roll, kind_of(order.playbook), 1, tmp_path, "inv", lambda _: None, far=(FAR,)
    )
    executor.run()
    whys = {one.outcome: one.why for one in executor.results.values()}
    if answers != "no":
        # The process that runs it here asks the worker again.
        assert whys == {Outcome.DONE: ""} and len(begun) == 2
    else:
        assert set(whys) == {Outcome.DONE, Outcome.FAILED} and len(begun) == 1
        assert "may still run on 10.0.0.9" in whys[Outcome.FAILED]


def test_the_notes_of_a_step_are_found_beside_those_that_go_meanwhile(tmp_path: Path) -> None:
    notes = tmp_path / "remote"
    notes.mkdir()
    mine = notes / f"shard-0001-{'a' * 12}.json"
    mine.write_text("{}")
    # As one that is removed between the look for names and the reading.
    (notes / f"shard-0002-{'b' * 12}.json").symlink_to("gone")
    assert near.left_by(tmp_path, ["shard-0001"]) == [mine]
    assert near.left_by(tmp_path, ["shard-00"]) == []
