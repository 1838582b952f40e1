"""The one order of a report: its words, its command, the GPUs it names, and the smaller orders that it includes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.hardware import make_reason, what_to_do
from gpu_burnin.judge.observations import Observations
from gpu_burnin.report import html, model, text
from gpu_burnin.report.junit import to_junit
from gpu_burnin.report.order import order_for, order_of
from gpu_burnin.types import Action, Notice, Reason
from tests.support.made_reports import make_report
from tests.support.page_reader import Parsed
from tests.support.sample_reports import Sample, gpus_of, healthy_8, sample


def asking(*asked: tuple[Action, int | None]) -> Sample:
    """A run with a reason for each action on a GPU of eight, None for the node."""

    def reason(action: Action, index: int | None) -> Reason:
        gpu = None if index is None else gpus_of(8)[index].uuid
        code = {Action.RESET_GPU: "ECC_PENDING", Action.RETEST: "GPU_BUSY"}.get(action, "XID_FATAL")
        return replace(make_reason(code, "state", f"{action} of {index}", gpu=gpu), action=action)

    def change(seen: Observations) -> Observations:
        return replace(seen, extra=tuple(reason(*each) for each in asked))

    return sample(change=change)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([(Action.NONE, 3)], "Do what the reasons say, then `gpu-burnin run`"),
        ([(Action.RETEST, 3)], "Do what the reasons say, then `gpu-burnin run`"),
        ([(Action.RESET_GPU, 5), (Action.RESET_GPU, 3)], "Reset GPU 3 and GPU 5, then `gpu-burnin run`"),
        ([(Action.RESET_GPU, 3), (Action.RESET_GPU, None)], "Reset the GPUs, then `gpu-burnin run`"),
        ([(Action.RESET_GPU, 3), (Action.REBOOT, 2)], "Reboot the machine, then `gpu-burnin run`"),
        ([(Action.POWER_CYCLE, 1)], "Power the machine off and on, then `gpu-burnin run`"),
        (
            [(Action.REPAIR, 2), (Action.RESET_GPU, 3)],
            "Power the machine off and have GPU 2 checked or replaced, then `gpu-burnin run`",
        ),
        ([(Action.HOLD, None), (Action.POWER_CYCLE, 1)], "Keep the node out until a person has looked at it"),
    ],
)
def test_order_has_words_for_each_action_and_names_the_gpus(asked: list[tuple[Action, int | None]], words: str) -> None:
    assert order_of(asking(*asked)[0]).text == words


def test_a_pass_has_nothing_to_do_and_every_action_has_an_order() -> None:
    assert order_of(healthy_8()[0]).text == "Nothing to do"
    assert all(order_for(action).sentence[0].isupper() for action in Action)


def test_a_pass_with_warnings_asks_to_read_them() -> None:
    slow, low = Notice("SLOW", "gemm", "it is slow"), Notice("POWER_LOW", "gemm", "it is low")
    assert order_of(make_report(warnings=(slow, slow))).text == "Read the warning; nothing else to do"
    assert order_of(make_report(warnings=(slow, slow, low))).text == "Read the 2 warnings; nothing else to do"


def test_a_pass_with_notes_alone_has_nothing_to_do() -> None:
    """What a first run of one GPU by hand tells: no trouble, and it must not read like it."""
    codes = ("NVLINK_ABSENT", "EXTENDED_WANTED", "NO_EVIDENCE")
    report = replace(healthy_8()[0], warnings=tuple(Notice(code, "state", "m") for code in codes))
    assert order_of(report).text == "Nothing to do"
    shown = text.render(report, what_to_do)
    assert "Warnings" not in shown
    notes = shown.split("Notes (nothing is wrong):")[1]
    assert all(code in notes for code in codes)


def test_what_an_extended_run_found_is_tested_by_another() -> None:
    report = replace(asking((Action.POWER_CYCLE, 1))[0], level="extended")
    assert order_of(report).command == "gpu-burnin run --level extended"


@pytest.mark.slow
def test_smaller_orders_are_covered_and_marked_and_those_of_a_person_are_not() -> None:
    report, series = asking((Action.POWER_CYCLE, 1), (Action.RESET_GPU, 3), (Action.RETEST, None))
    order = order_of(report)
    assert order.covered == (Action.RETEST, Action.RESET_GPU)
    assert order.included(["reset_gpu"]) == "the reset"
    assert order.included(["retest", "reset_gpu"]) == "the new test and the reset"
    assert order.included(["power_cycle"]) == order.included(["reset_gpu", "power_cycle"]) == order.included([]) == ""
    shown = Parsed(html.render(report, series)).text
    assert shown.count("The order above includes the reset.") == 1
    assert shown.count("The order above includes") == 2
    lines = " ".join(text.render(report, lambda code: "Do it.").split())
    assert lines.count("To do: Do it. ACTION includes the reset.") == lines.count("ACTION includes the new test.") == 1
    held, series = asking((Action.HOLD, None), (Action.RESET_GPU, 3))
    assert order_of(held).covered == ()
    assert "The order above" not in Parsed(html.render(held, series)).text


def test_what_may_be_injected_covers_nothing_of_other_gpus() -> None:
    report, series = asking((Action.REPAIR, 3), (Action.RESET_GPU, 1), (Action.RETEST, 1))
    reasons = (replace(one, check="gemm" if one.action is Action.REPAIR else "telemetry") for one in report.reasons)
    report = replace(report, reasons=tuple(reasons))

    def injected(spec: str) -> model.Report:
        return replace(report, coverage=replace(report.coverage, injected=(spec,)))

    order = order_of(injected("gemm:bitflip:gpu=3"))
    assert order.text == (
        "Reset GPU 1. Then run again without --inject. Only if the fault of GPU 3 was not injected: "
        "power the machine off and have GPU 3 checked or replaced, then `gpu-burnin run`"
    )
    assert order.included(["reset_gpu"]) == ""
    assert order.included(["retest"]) == "the new test"
    assert "The order above includes the reset" not in Parsed(html.render(injected("gemm:bitflip:gpu=3"), series)).text
    # Without a GPU it was injected everywhere; the check alone may make its GPUs' peers fail.
    for spec in ("gemm:bitflip", "telemetry:bitflip:gpu=3"):
        words = "Run again without --inject. Only if the fault was not injected: power"
        assert order_of(injected(spec)).text.startswith(words)


def test_page_text_and_junit_tell_the_same_order() -> None:
    report, series = asking((Action.POWER_CYCLE, 1), (Action.RESET_GPU, 3))
    words = "Power the machine off and on, then"
    page = html.render(report, series)
    assert f'<b>Next:</b> {words} <code class="command"><span>gpu-burnin run</span></code>.' in page
    assert f"ACTION   {words} `gpu-burnin run`\n" in text.render(report, lambda code: None)
    assert f'name="order" value="{words} `gpu-burnin run`"' in to_junit(report).decode()
    assert [reason.action for reason in report.reasons] == ["power_cycle", "reset_gpu"]
