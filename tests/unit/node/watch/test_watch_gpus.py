"""When the agent of a pod ends for a driver that came after it: one process loads NVML once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.contained import nvml_file
from gpu_burnin.node.watch import gpus
from gpu_burnin.node.watch import serve as agent_at_work
from gpu_burnin.settings.config import Config
from gpu_burnin.telemetry.nvml import NvmlUnavailableError
from gpu_burnin.telemetry.nvml_library import LIBRARY
from tests.support.agent_helpers import FakeSystem

MISMATCH, LOST = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_DRIVER_NOT_LOADED


class Over(BaseException):
    """The script has ended, and the thread would go on."""


def run(
    monkeypatch: pytest.MonkeyPatch, script: list[int], library: Callable[[], object] | None
) -> tuple[list[str], bool]:
    """What is said of it for opens that end so (0: it opens, and its driver goes); whether it went on reading."""
    stale: list[str] = []

    class Nvml:
        def __enter__(self) -> Nvml:
            if not script:
                raise Over
            if code := script.pop(0):
                raise NvmlUnavailableError(code)
            return self

        def __exit__(self, *_: object) -> None: ...

    def watch(*_: object) -> None:
        raise pynvml.NVMLError(LOST)

    monkeypatch.setattr(gpus, "Nvml", Nvml)
    monkeypatch.setattr(gpus.Gpus, "_watch", watch)
    made = gpus.Gpus(0.0, lambda *_: None, lambda _: None, library, stale.append)
    try:
        made._run()
    except Over:
        return stale, True
    return stale, False


def test_a_driver_that_came_after_this_process_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stale, goes_on = run(monkeypatch, [LOST, 0, LOST, MISMATCH, MISMATCH], lambda: 1)
    assert len(stale) == 1 and not goes_on
    # Nor did the library work ever, but it is another file by now.
    files = iter([1, 1, 2])
    stale, goes_on = run(monkeypatch, [LOST, MISMATCH, MISMATCH, MISMATCH], lambda: next(files))
    assert len(stale) == 1 and not goes_on


def test_what_another_start_would_not_mend_is_told_and_nobody_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, [MISMATCH] * 3, lambda: 1) == ([], True)
    assert run(monkeypatch, [0, LOST, LOST], lambda: 1) == ([], True)
    # On a host, where a driver is updated and waits for a reboot.
    assert run(monkeypatch, [0, MISMATCH, MISMATCH], None) == ([], True)


def test_the_agent_ends_with_the_reason(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stale:
        def __init__(self, *arguments: Callable[[str], None]) -> None:
            self._on_stale = arguments[-1]

        def start(self) -> None:
            self._on_stale("another driver")

        def ask(self) -> None: ...

    monkeypatch.setattr(agent_at_work, "Gpus", Stale)
    stop = threading.Event()
    monkeypatch.setattr(agent_at_work, "_follow", lambda *_: stop.wait())
    with pytest.raises(GpuBurninError, match="the agent starts anew: another driver"):
        agent_at_work.serve(config, lambda *_: None, stop, FakeSystem(), library=lambda: 1)


def test_the_file_of_the_library_is_told_apart(tmp_path: Path) -> None:
    assert nvml_file(tmp_path) is None
    for version in ("1", "2"):
        (tmp_path / version).write_text(version)
    (tmp_path / LIBRARY).symlink_to(tmp_path / "1")
    first = nvml_file(tmp_path)
    (tmp_path / LIBRARY).unlink()
    (tmp_path / LIBRARY).symlink_to(tmp_path / "2")
    assert None not in (first, nvml_file(tmp_path)) and first != nvml_file(tmp_path)
