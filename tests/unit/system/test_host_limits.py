"""Limits of the host: named where something shows that they were met, and never an excuse for a death that is not."""

from __future__ import annotations

import errno
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.device.port import DeviceError
from gpu_burnin.engine.worker import _failure
from gpu_burnin.system import host_limits
from gpu_burnin.system.host_limits import ALL, Scarce, groups, oom_kills, scarce_in, scarce_of, shown_by_end
from gpu_burnin.types import Verdict
from tests.support.engine_helpers import plan
from tests.support.executor_helpers import Fake, reasons_of

MIB = 1 << 20
LIMITED = [("HOST_LIMIT", Verdict.INCONCLUSIVE)]
BLAS = "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.\n"
Limit = Callable[..., None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Sets limits of this process, as far as it looks at them; what is not named has none."""

    def set_limits(**values: int) -> None:
        by_number = {getattr(resource, name): value for name, value in values.items()}

        def getrlimit(number: int) -> tuple[int, int]:
            value = by_number.get(number, resource.RLIM_INFINITY)
            return value, value

        monkeypatch.setattr(resource, "getrlimit", getrlimit)

    set_limits()
    return set_limits


def ended(status: int, tail: str = "") -> dict[str, Any]:
    return {"pid": 4711, "exit_status": status, "stderr_tail": tail}


# --- what was scarce ---


def _from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def _gpu_memory() -> Exception:
    kind = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
    error: Exception = kind("out of memory")
    return error


@pytest.mark.parametrize(
    ("error", "scarce"),
    [
        (MemoryError("no room"), Scarce.MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Scarce.MEMORY),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), Scarce.PROCESSES),
        (OSError(errno.EMFILE, "Too many open files"), Scarce.FILES),
        (RuntimeError("can't start new thread"), Scarce.PROCESSES),
        (_from(ImportError("numpy"), ImportError("x.so: failed to map segment from shared object")), Scarce.MEMORY),
        (_from(DeviceError("no memory for copies"), MemoryError()), Scarce.MEMORY),
        (_from(DeviceError("no GPU memory"), _gpu_memory()), Scarce.GPU_MEMORY),
        (DeviceError("NCCL failed: see shared memory (/dev/shm) of this host"), Scarce.SHARED),
        (DeviceError("CUDA failed while multiplying (an illegal memory access was encountered)"), None),
        (OSError(errno.ENFILE, "Too many open files in system"), None),
        (ValueError("MemoryError"), None),
    ],
)
def test_what_was_scarce_is_told_by_the_error_or_what_it_came_of(error: Exception, scarce: Scarce | None) -> None:
    assert scarce_of(error) is scarce
    assert _failure(error)["scarce"] == scarce


def test_only_the_last_words_of_a_program_count() -> None:
    assert scarce_in(BLAS) is Scarce.MEMORY
    assert scarce_in("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n\n")
    assert scarce_in("MemoryError\n" + "a line of something else\n" * 3) is None


# --- the way a worker ended ---


@pytest.mark.parametrize("status", [1, -signal.SIGABRT])
def test_an_end_with_words_shows_the_limit_that_is_in_force(limit: Limit, status: int) -> None:
    limit(RLIMIT_AS=72 * MIB)
    met = shown_by_end(ended(status, BLAS), False, {}, {})
    assert (
        met is not None
        and met.by_limit
        and met.text == "RLIMIT_AS is 72 MiB: raise it (ulimit -v, LimitAS= of the unit)"
    )
    limit()
    assert shown_by_end(ended(status, BLAS), False, {}, {}) is None, "without a limit it is a death like any other"


@pytest.mark.parametrize("status", [-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL, 0])
def test_a_gpu_cannot_hide_behind_a_limit(limit: Limit, status: int) -> None:
    limit(RLIMIT_AS=72 * MIB)
    assert shown_by_end(ended(status, BLAS), False, {ALL: 3}, {ALL: 3}) is None
    assert shown_by_end(ended(1, "the driver said no\n"), False, {}, {}) is None


def test_a_limit_of_processor_time_shows_by_its_signal(limit: Limit) -> None:
    limit(RLIMIT_CPU=30)
    met = shown_by_end(ended(-signal.SIGXCPU), False, {}, {})
    assert met is not None and "RLIMIT_CPU is 30" in met.text


def test_a_kill_for_memory_is_one_that_the_kernel_has_counted_for_its_group() -> None:
    killed = ended(-signal.SIGKILL)
    assert shown_by_end(killed, False, {ALL: 3}, {ALL: 4}) is not None
    assert shown_by_end(killed, True, {ALL: 3}, {ALL: 4}) is None, "it was this run that killed it"
    own = "/sys/fs/cgroup/burnin"
    assert shown_by_end(killed, False, {own: 0, ALL: 3}, {own: 0, ALL: 4}) is None, "another group's process was killed"
    assert shown_by_end(killed, False, {own: 0, ALL: 3}, {own: 1, ALL: 4}) is not None


# --- control groups ---


def _cgroup(tmp_path: Path, files: dict[str, str], lines: str) -> tuple[Path, Path]:
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    proc = tmp_path / "cgroup"
    proc.write_text(lines)
    return proc, tmp_path / "fs"


def test_the_limit_of_a_control_group_or_one_around_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "pod/memory.max": f"{512 * MIB}\n", "pod/memory.events": "low 0\noom 1\noom_kill 1\n",
        "pod/burnin/memory.max": "max\n", "pod/burnin/memory.events": "low 0\noom_kill 1\n",
        "pod/burnin/pids.max": "64\n", "pod/burnin/pids.events": "max 2\n",
    }  # fmt: skip
    proc, root = _cgroup(tmp_path, files, "0::/pod/burnin\n")
    own, pod = groups(proc, root)
    assert (own.memory_bytes, own.oom_kills, own.processes, own.processes_refused) == (None, 1, 64, 2)
    assert (pod.memory_bytes, pod.oom_kills) == (512 * MIB, 1)
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 1\noom_kill 3\n")
    after = oom_kills(vmstat, proc, root)
    assert after == {str(own.path): 1, str(pod.path): 1, ALL: 3}
    monkeypatch.setattr(host_limits, "groups", lambda: (own, pod))
    met = shown_by_end(ended(-signal.SIGKILL), False, dict.fromkeys(after, 0), after)
    assert met is not None and met.by_limit and f"{pod.path} may use 512 MiB" in met.text
    assert "pids.max of" in host_limits.shortage(Scarce.PROCESSES).text


def test_groups_of_version_1_and_of_nothing(tmp_path: Path) -> None:
    files = {
        "memory/app/memory.limit_in_bytes": f"{MIB}\n", "memory/app/memory.oom_control": "under_oom 0\noom_kill 2\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }  # fmt: skip
    proc, root = _cgroup(tmp_path, files, "5:cpu:/app\n4:memory:/app\n0::/\n")
    (app,) = groups(proc, root)
    assert (app.memory_bytes, app.oom_kills) == (MIB, 2)
    assert groups(tmp_path / "none", root) == ()
    assert oom_kills(tmp_path / "none", tmp_path / "none", root) == {ALL: 0}


# --- what the supervisor makes of it ---


def test_a_worker_that_cannot_start_under_a_limit_blames_the_limit(fake: Fake, limit: Limit) -> None:
    limit(RLIMIT_AS=72 * MIB)
    result = fake("runs out of memory at start", plan("gemm", "hbm", selftest=True))
    assert [reasons_of(done) for done in result.results] == [LIMITED, LIMITED]
    assert "RLIMIT_AS is 72 MiB" in result.results[0].reasons[0].message
    assert len(result.worker_pids) == 1, "it would be so again"


def test_without_a_limit_a_worker_that_cannot_start_is_a_death(fake: Fake, limit: Limit) -> None:
    limit()
    result = fake("runs out of memory at start", plan("gemm"))
    assert ("WORKER_DIED", Verdict.FAIL) in reasons_of(result.results[0])


@pytest.mark.slow
def test_a_hang_after_a_limit_was_met_is_the_limits(fake: Fake, limit: Limit) -> None:
    limit(RLIMIT_AS=72 * MIB)
    made = plan("gemm", deadline_s=0.3)
    assert reasons_of(fake("has no memory and hangs", made).results[0]) == LIMITED
    assert reasons_of(fake("hangs", made).results[0]) == [("HUNG", Verdict.FAIL)], "nothing shows that it was met"
    limit()
    assert reasons_of(fake("has no memory and hangs", made).results[0]) == [("HUNG", Verdict.FAIL)]


def test_a_worker_that_cannot_be_started_names_the_limit(
    fake: Fake, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    limit(RLIMIT_NOFILE=16)
    monkeypatch.setattr("gpu_burnin.engine.worker_supervisor.WorkerProcess", refuse)
    result = fake("fine", plan("gemm"))
    assert [reasons_of(done) for done in result.results] == [LIMITED]
    assert "RLIMIT_NOFILE is 16" in result.results[0].reasons[0].message


def test_a_selftest_under_a_limit_is_no_blind_detector(fake: Fake, limit: Limit) -> None:
    limit(RLIMIT_AS=72 * MIB)
    result = fake("selftest has no memory", plan("gemm", selftest=True))
    assert [reasons_of(done) for done in result.results] == [LIMITED]
    assert "the self-test of gemm could not run" in result.results[0].reasons[0].message
