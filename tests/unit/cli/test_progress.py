"""The live view: what a line says, time left, numbers from another thread, texts that are no markup."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from gpu_burnin.cli import progress
from tests.support.sample_reports import gpus_of

GPUS = gpus_of(3)
A, B, C = (gpu.uuid for gpu in GPUS)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def started(check: str = "gemm", gpu: str | None = A) -> dict[str, Any]:
    return {"event": "check_started", "gpu": gpu, "check": check}


def finished(check: str = "gemm", gpu: str | None = A, verdict: str = "PASS", *codes: str) -> dict[str, Any]:
    return {"event": "check_finished", "gpu": gpu, "check": check, "verdict": verdict, "seconds": 3.21, "codes": codes}


def progress_event(gpu: str = A, **data: object) -> dict[str, Any]:
    return {"event": "progress", "gpu": gpu, "check": "gemm", **data}


RUN = {"event": "run_started", "level": "quick", "total_s": 60.0, "plan_sha256": "0"}


def lines(clock: Clock, *steps: tuple[float, Mapping[str, Any]]) -> list[str]:
    """The plain lines for events at seconds after the start, without their time of day."""
    stream, start = io.StringIO(), clock.now
    show = progress.plain(stream, GPUS, clock)
    for at, event in steps:
        clock.now = start + at
        show(event)
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in stream.getvalue().splitlines()]


def test_plain_lines_say_what_happened_and_the_time_left(clock: Clock) -> None:
    assert lines(
        clock,
        (0, RUN),
        (1, started("state", None)),
        (2, finished("state", None)),
        (3, started()),
        (19, {"event": "selftest_finished", "gpu": A, "check": "gemm", "injected": 5, "detected": 4}),
        (20, finished("gemm", A, "FAIL", "GEMM_MISMATCH", "SLOW")),
        (70, finished("hbm", B)),
    ) == [
        "node: state started, 59 s left",
        "node: state PASS after 3.2 s, 58 s left",
        "GPU 0: gemm started, 57 s left",
        "GPU 0: gemm self-test: 4 of 5 injected faults detected",
        "GPU 0: gemm FAIL after 3.2 s (GEMM_MISMATCH, SLOW), 40 s left",
        "GPU 1: hbm PASS after 3.2 s, 10 s over the planned 60 s",
    ]


def test_plain_lines_without_a_known_time_say_none(clock: Clock) -> None:
    assert lines(clock, (0, {"event": "run_started", "level": "quick"}), (1, started())) == ["GPU 0: gemm started"]


def test_a_log_gets_a_line_on_all_gpus_now_and_then(clock: Clock) -> None:
    steps = [(0.0, RUN), (1.0, started(gpu=A)), (1.0, started(gpu=B))]
    steps += [(2.0, progress_event(A, phase="bf16", rate=812.0, rate_unit="TFLOP/s", errors=0))]
    steps += [(3.0, progress_event(B, phase="bf16", rate=798.4, rate_unit="TFLOP/s", errors=2))]
    steps += [(4.0, {"event": "sample", "gpu": C, "temperature_c": 71, "power_w": 690.0})]
    quiet = lines(clock, *steps)
    assert len(quiet) == 2
    busy = lines(clock, *steps, (40.0, progress_event(A)), (41.0, progress_event(A)))
    assert busy[2:] == [
        "2 of 3 GPUs busy (gemm bf16), slowest GPU 1 798.4 TFLOP/s, hottest GPU 2 71 °C, GPU 1 2 errors, 20 s left"
    ]


def test_a_log_is_silent_when_no_gpu_is_busy(clock: Clock) -> None:
    sample = {"event": "sample", "gpu": A, "temperature_c": 40}
    assert lines(clock, (0, RUN), (100, sample)) == []


def test_a_brief_log_tells_each_check_once_and_all_that_is_not_well() -> None:
    stream = io.StringIO()
    show = progress.brief(stream, GPUS)
    selftest = {"gpu": A, "check": "gemm", "injected": 5}
    for event in (
        RUN, started("state", None), finished("state", None),
        *({**selftest, "event": "selftest_started", "check": check} for check in ("sm", "gemm")),
        {**selftest, "event": "selftest_finished", "detected": 5},
        {**selftest, "event": "selftest_finished", "detected": 4},
        started(gpu=A), started(gpu=B), progress_event(A, errors=3),
        finished("gemm", A, "FAIL", "GEMM_MISMATCH"), finished("gemm", B),
        {"event": "worker_wedged", "gpu": B, "pid": 7}, started("hbm", C),
    ):  # fmt: skip
        show(event)
    assert [line[9:] for line in stream.getvalue().splitlines()] == [
        "state started",
        "self-tests started",
        "GPU 0: gemm self-test: 4 of 5 injected faults detected",
        "gemm started",
        "GPU 0: gemm FAIL after 3.2 s (GEMM_MISMATCH)",
        "GPU 1: worker 7 cannot be killed, leaving it behind",
        "hbm started",
    ]


class View:
    """A live table that is not drawn by itself, and what it shows."""

    def __init__(self, clock: Clock, width: int = 160) -> None:
        self.table, self.width = progress.LiveTable(io.StringIO(), GPUS, clock), width
        self.table._console.width = width

    def __call__(self, *events: Mapping[str, Any]) -> list[str]:
        for event in events:
            self.table._show(event)
        stream = io.StringIO()
        Console(file=stream, width=self.width).print(self.table._view())
        return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_live_row_shows_phase_rate_temperature_power_and_errors(clock: Clock) -> None:
    view = View(clock)
    view(RUN, started())
    clock.now += 19
    shown = view(
        progress_event(phase="bf16 square", rate=812.43, rate_unit="TFLOP/s", errors=3, done=0.42),
        {"event": "sample", "gpu": A, "temperature_c": 71, "power_w": 688.4, "clock_sm_mhz": 1755},
    )
    assert shown[0] == "level quick 19 s elapsed 41 s left of 60 s"
    assert shown[1] == "doing time done rate temp power errors results"
    assert shown[3] == "GPU 0 gemm bf16 square 19 s 42% 812.4 TFLOP/s 71 °C 688 W 3"
    assert shown[4] == "GPU 1 waiting 0"


def test_live_row_forgets_the_last_check_but_not_its_errors(clock: Clock) -> None:
    view = View(clock)
    view(RUN, started(), progress_event(phase="bf16", rate=1.0, errors=2), finished(verdict="FAIL"))
    shown = view(started("hbm"), progress_event(rate=3.5, rate_unit="GB/s", errors=1))
    assert shown[3] == "GPU 0 hbm 0 s 3.5 GB/s 3 FAIL gemm"


def test_a_narrow_terminal_still_shows_errors_and_results(clock: Clock) -> None:
    sample = {"event": "sample", "gpu": A, "temperature_c": 71, "power_w": 688.4}
    events = [RUN, started(), finished("sm"), finished("gemm"), started("hbm"), sample]
    events += [progress_event(phase="memory patterns", rate=1812.4, rate_unit="GB/s", errors=2, done=0.42)]
    wide, narrow = View(clock)(*events), View(clock, 66)(*events)
    assert wide[1] == "doing time done rate temp power errors results"
    assert narrow[1] == "doing rate errors results"
    assert narrow[3] == "GPU 0 hbm memory patterns 1,812 GB/s 2 PASS sm gemm"
    assert View(clock, 76)(*events)[1] == "doing done rate temp errors results"


def test_all_checks_of_a_run_fit_a_usual_terminal_and_the_worst_verdict_comes_first(clock: Clock) -> None:
    names = ("sm", "gemm", "hbm", "pcie", "nvlink", "nccl")
    done = [finished(name, A, "FAIL" if name == "pcie" else "PASS") for name in names]
    long = (started(), progress_event(phase="fp8_e4m3 unit_filled_with_words"))
    shown = View(clock, 80)(RUN, *long, *done, started("power"), progress_event(phase="mixed load"))
    assert shown[3] == "GPU 0 power mixed load 0 FAIL pcie PASS sm gemm hbm nvlink nccl"


def test_a_check_of_the_node_shows_its_verdict_on_the_gpus_that_it_blames(clock: Clock) -> None:
    event = {**finished("state", None, "FAIL", "ECC_UNCORRECTED"), "gpus": [A, "GPU-gone"]}
    node, blamed, *others = View(clock)(event)[-4:]
    assert "FAIL state" in node and "FAIL state" in blamed
    assert len(others) == 2 and "FAIL" not in "".join(others)


def test_columns_do_not_jump_from_phase_to_phase(clock: Clock) -> None:
    table = progress.LiveTable(io.StringIO(), GPUS, clock)
    table._console.width = 160
    columns = []
    for phase in ("a phase with a long name", "short"):
        table._show(started())
        table._show(progress_event(phase=phase))
        columns.append(table._view().plain.splitlines()[1].index("errors"))
    assert columns[0] == columns[1]


def test_time_left_never_says_nothing_is_left_while_it_is(clock: Clock) -> None:
    assert lines(clock, (0, RUN), (59.8, started())) == ["GPU 0: gemm started, 1 s left"]


def test_the_head_tells_the_time_elapsed_left_and_in_all_from_the_first_to_the_last(clock: Clock) -> None:
    view = View(clock)
    clock.now += 3
    assert view()[0] == "starting 3 s elapsed"
    assert view({**RUN, "spent_s": 5.2})[0] == "level quick 5 s elapsed 55 s left of 60 s"
    clock.now += 54.7
    assert view()[0] == "level quick 59 s elapsed 1 s left of 60 s"
    clock.now += 0.2
    assert view()[0] == "level quick 60 s elapsed 1 s over the planned 60 s"
    clock.now += 130
    assert view()[0] == "level quick 3:10 min elapsed 2:11 min over the planned 60 s"


def test_a_run_of_self_tests_has_no_planned_time(clock: Clock) -> None:
    assert View(clock)({**RUN, "total_s": None})[0] == "level quick 0 s elapsed"


@pytest.mark.parametrize(("done", "shown"), [(0.0, "0%"), (0.42, "42%"), (0.996, "99%"), (1.0, "99%"), (7.5, "99%")])
def test_a_check_that_goes_on_is_not_done(clock: Clock, done: float, shown: str) -> None:
    view = View(clock)
    assert view(RUN, started(), progress_event(done=done))[3] == f"GPU 0 gemm 0 s {shown} 0"
    assert view(finished())[3] == "GPU 0 0 PASS gemm"


def test_a_self_test_that_has_ended_says_so_in_a_few_words_and_hides_no_column(clock: Clock) -> None:
    view = View(clock, 80)
    ended = {"event": "selftest_finished", "gpu": A, "check": "gemm", "injected": 70, "detected": 70}
    sample = {"event": "sample", "gpu": A, "temperature_c": 29, "power_w": 69.0}
    shown = view(RUN, {"event": "selftest_started", "gpu": A, "check": "gemm"}, sample, ended)
    assert shown[3] == "GPU 0 gemm self-test 70/70 0 s 29 °C 69 W 0"


def test_a_long_phase_of_the_past_hides_no_column(clock: Clock) -> None:
    view = View(clock, 80)
    view(RUN, started(), progress_event(phase="words " * 12))
    shown = view(finished(), started("hbm"), progress_event(phase="short"))
    assert shown[1] == "doing time done rate temp power errors results"


def test_faults_of_the_self_test_are_not_errors_of_the_gpu(clock: Clock) -> None:
    view = View(clock)
    shown = view(RUN, {"event": "selftest_started", "gpu": A, "check": "gemm"}, progress_event(errors=9))
    assert shown[3] == "GPU 0 gemm self-test 0 s 0"


def test_texts_of_workers_are_no_markup_and_odd_values_no_numbers(clock: Clock) -> None:
    shown = View(clock)(RUN, started(), progress_event(phase="[red]x[/red]", rate="fast", errors=None, done=True))
    assert shown[3] == "GPU 0 gemm [red]x[/red] 0 s 0"


def test_phase_that_begins_with_its_check_says_it_once(clock: Clock) -> None:
    shown = View(clock)(RUN, started(), progress_event(phase="gemm fp32"))
    assert shown[3] == "GPU 0 gemm fp32 0 s 0"


def test_interruption_is_timed_from_its_own_beginning(clock: Clock) -> None:
    view = View(clock)
    view(RUN, started("state", None), finished("state", None))
    clock.now += 40
    assert view({"event": "interrupted"})[2] == "node interrupted, ending the workers 0 s PASS state"


def test_worker_that_hangs_is_said(clock: Clock) -> None:
    shown = View(clock)(RUN, started(), {"event": "deadline_missed", "gpu": A, "check": "gemm", "pid": 5})
    assert "did not finish in its time" in shown[3]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (41.4, "41 s"), (99, "99 s"), (185, "3:05 min"), (6100, "1:41 h")]
)
def test_time_left_is_readable(seconds: float, text: str) -> None:
    assert progress.time_text(seconds) == text


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_events_from_many_threads_do_not_tear_a_display(kind: str, clock: Clock) -> None:
    stream = io.StringIO()
    view = progress.LiveTable(stream, GPUS, clock)
    show = view._show if kind == "live" else progress.plain(stream, GPUS, clock)
    failures: list[BaseException] = []

    def work(uuid: str) -> None:
        try:
            for step in range(300):
                show(finished(gpu=uuid))
                show({"event": "sample", "gpu": uuid, "temperature_c": step})
                if kind == "live":
                    view._view()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(uuid,)) for uuid in (A, B, C)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    if kind == "plain":
        assert len(stream.getvalue().splitlines()) == 900
        assert all(
            re.fullmatch(r"[\d:]{8} GPU \d: gemm PASS after 3.2 s", line) for line in stream.getvalue().splitlines()
        )
    else:
        assert [len(row.done) for row in view._board.rows.values()] == [0, 300, 300, 300]


def test_display_is_live_on_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, log = Terminal(), io.StringIO()
    with progress.display(GPUS, terminal) as show:
        show(started())
    assert isinstance(progress.display(GPUS, terminal), progress.LiveTable)
    assert "GPU 2" in terminal.getvalue()
    with progress.display(GPUS, log) as show:
        show(started())
    assert log.getvalue().endswith("GPU 0: gemm started\n")
