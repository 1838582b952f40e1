"""Compiled kernels shared by the workers of a run: compiled once, verified before use, never waited for without end."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import types
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin import run
from gpu_burnin.checks.sources import kernel_sources
from gpu_burnin.device import kernels
from gpu_burnin.device.cpu import CpuDevice
from gpu_burnin.device.kernel_store import KernelStore, Refused, read_image
from gpu_burnin.device.kernels import KernelLoader
from gpu_burnin.device.nvrtc import Nvrtc
from gpu_burnin.engine.executor import ExecutionResult
from gpu_burnin.engine.worker import Worker
from gpu_burnin.hardware.reasons import load_reasons
from gpu_burnin.node.store import RunDirectory
from tests.support.clocks import PATIENCE_S
from tests.support.engine_helpers import plan
from tests.support.executor_helpers import Fake

SOURCES = kernel_sources()
SOURCE, OTHER = "first source", "second source"


class Compiler:
    """Counts what it compiles, and gives something that is as long as machine code and says what it is."""

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def __call__(self, source: str, target: str) -> bytes:
        self.compiled.append(source)
        return f"{target} {source}\n".encode() * 1000 + b"\0\n"


def _store(
    folder: Path | None, compile: Any, target: str = "sm_90", version: str = "13.5", **changes: Any
) -> KernelStore:
    return KernelStore(compile, version, target, folder, **changes)


def test_a_second_worker_takes_what_the_first_has_compiled(tmp_path: Path) -> None:
    first, second = Compiler(), Compiler()
    made = _store(tmp_path, first).image(SOURCE)
    other = _store(tmp_path, second)
    assert other.image(SOURCE) == made == Compiler()(SOURCE, "sm_90")
    assert (first.compiled, second.compiled) == ([SOURCE], [])
    assert (other.compiled, other.shared, other.refused) == (0, 1, [])


@pytest.mark.parametrize("change", [{"target": "sm_100"}, {"version": "13.6"}])
def test_another_target_or_compiler_compiles_for_itself(tmp_path: Path, change: dict[str, Any]) -> None:
    second = Compiler()
    _store(tmp_path, Compiler()).image(SOURCE)
    _store(tmp_path, second, **change).image(SOURCE)
    assert second.compiled == [SOURCE]


def test_other_options_are_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store(tmp_path, Compiler())
    before = store.key(SOURCE)
    monkeypatch.setattr("gpu_burnin.device.nvrtc.OPTIONS", ("-ftz=true",))
    assert store.key(SOURCE) != before


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def _from_another_source(path: Path) -> None:
    other = _store(path.parent, Compiler())
    other.image(OTHER)
    (path.parent / other.key(OTHER)).replace(path)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_flip, "SHA-256"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "SHA-256"),
        (lambda path: path.write_bytes(b""), "first line"),
        (lambda path: path.write_bytes(b"[]\n"), "other sources"),
        (_from_another_source, "other sources"),
        (_link, "symbolic"),
        (_fifo, "not a regular file"),
        (lambda path: (path.unlink(), path.mkdir()), "director|regular"),
    ],
    ids=["flipped", "cut", "empty", "no mapping", "another's", "link", "fifo", "directory"],
)
def test_what_is_damaged_or_foreign_is_compiled_again_and_said(tmp_path: Path, spoil: Any, why: str) -> None:
    first = _store(tmp_path, Compiler())
    right = first.image(SOURCE)
    spoil(tmp_path / first.key(SOURCE))
    compile = Compiler()
    second = _store(tmp_path, compile)
    assert second.image(SOURCE) == right
    assert compile.compiled == [SOURCE]
    assert any("compiled again" in said for said in second.refused), second.refused
    with pytest.raises((Refused, OSError), match=f"(?i){why}"):
        spoil_again = tmp_path / "again"
        spoil_again.mkdir()
        path = spoil_again / first.key(SOURCE)
        _store(spoil_again, Compiler()).image(SOURCE)
        spoil(path)
        read_image(path, first.key(SOURCE))


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store(tmp_path, Compiler())
    store.image(SOURCE)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(Refused, match="belongs to user"):
        read_image(tmp_path / store.key(SOURCE), store.key(SOURCE))


def test_a_holder_of_the_lock_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    store = _store(tmp_path, Compiler(), wait_s=0.05)
    with (tmp_path / f"{store.key(SOURCE)}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert store.image(SOURCE) == Compiler()(SOURCE, "sm_90")
    assert store.compiled == 1


def test_what_another_is_compiling_is_left_until_the_rest_is_done(tmp_path: Path) -> None:
    compile = Compiler()
    store = _store(tmp_path, compile, wait_s=0.05)
    with (tmp_path / f"{store.key(SOURCE)}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.prepare([SOURCE, OTHER])
    assert compile.compiled == [OTHER, SOURCE]


def test_a_folder_that_cannot_be_used_costs_only_the_sharing(tmp_path: Path) -> None:
    store = _store(tmp_path / "missing", Compiler())
    store.prepare([SOURCE, OTHER])
    assert store.image(SOURCE) == Compiler()(SOURCE, "sm_90")
    assert (store.compiled, len(store.refused)) == (2, 1)
    assert "cannot be shared" in store.refused[0]


def _worker(folder: Path, barrier: Any, told: Any) -> None:
    compile = Compiler()
    store = _store(folder, compile)
    barrier.wait()
    store.prepare([SOURCE, OTHER, "third"])
    told.put((len(compile.compiled), store.image("third")))


def test_eight_workers_at_once_compile_each_source_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, told = context.Barrier(8), context.Queue()
    workers = [context.Process(target=_worker, args=(tmp_path, barrier, told)) for _ in range(8)]
    for worker in workers:
        worker.start()
    answers = [told.get(timeout=PATIENCE_S) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(compiled for compiled, _ in answers) == 3
    assert {image for _, image in answers} == {Compiler()("third", "sm_90")}


# --- onto the device ---


class _Cupy:
    """CuPy's modules: they give functions of the image that they were given."""

    def __init__(self) -> None:
        self.attributes: list[tuple[Any, ...]] = []
        self.cuda = types.SimpleNamespace(
            function=types.SimpleNamespace(Module=_Module),
            driver=types.SimpleNamespace(
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
                funcSetAttribute=lambda *arguments: self.attributes.append(arguments),
            ),
            runtime=types.SimpleNamespace(runtimeGetVersion=lambda: 13020),
        )


class _Module:
    def load(self, image: bytes) -> None:
        self.image = image

    def get_function(self, name: str) -> Any:
        return types.SimpleNamespace(ptr=f"{name} of {len(self.image)}")


def test_functions_come_from_the_image_and_may_have_the_shared_memory_that_they_ask_for(tmp_path: Path) -> None:
    cupy = _Cupy()
    loader = KernelLoader(cupy, _store(tmp_path, Compiler()))
    size = len(Compiler()(SOURCE, "sm_90"))
    assert loader.load(SOURCE, ["one"])["one"].ptr == f"one of {size}"
    assert cupy.attributes == []
    loader.load(SOURCE, ["one", "two"], 1 << 16)
    assert cupy.attributes == [(f"{name} of {size}", 8, 1 << 16) for name in ("one", "two")]
    assert loader.facts() == {
        "nvrtc": "13.5", "kernel_target": "sm_90", "kernels_compiled": 1, "kernels_shared": 0, "kernels_refused": [],
    }  # fmt: skip


@pytest.mark.slow
def test_all_kernels_are_compiled_when_the_device_opens(
    compiler: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those that take the compiler a tenth of a second; test_nvrtc.py compiles each one."""
    sources = tuple(SOURCES[name] for name in ("nccl", "nvlink", "pcie"))
    first = kernels.open_loader(_Cupy(), (9, 0), tmp_path, sources)
    assert first.facts()["kernels_compiled"] == len(sources)
    monkeypatch.setattr(Nvrtc, "compile", lambda *_: pytest.fail("compiled again"))
    second = kernels.open_loader(_Cupy(), (9, 0), tmp_path, sources)
    assert (second.facts()["kernels_compiled"], second.facts()["kernels_shared"]) == (0, len(sources))


# --- in a run ---


def test_every_worker_of_a_run_is_told_where_to_share(fake: Fake, tmp_path: Path) -> None:
    result = fake("healthy", plan("gemm", gpus=2), kernel_dir=tmp_path / "kernels")
    assert {facts["kernel_dir"] for facts in result.facts.values()} == {str(tmp_path / "kernels")}


def test_the_real_worker_gives_the_directory_to_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        "gpu_burnin.device.choose.make_device", lambda *arguments: made.append(arguments) or CpuDevice()
    )
    Worker(plan("gemm"), "GPU-0", lambda _: None, lambda: None, tmp_path).open()
    ((name, folder, sources),) = made
    assert (name, folder, sources()) == ("cpu", tmp_path, tuple(SOURCES.values()))


def test_the_directory_is_the_run_s_own_and_goes_with_it(tmp_path: Path) -> None:
    with run._kernel_dir(RunDirectory("run", 1, tmp_path)) as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "left").write_text("over")
    assert list(tmp_path.iterdir()) == []


def test_an_older_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    with pytest.raises(FileExistsError), run._kernel_dir(RunDirectory("run", 1, tmp_path)):
        pass


def test_what_a_worker_found_damaged_is_a_warning_of_the_run() -> None:
    facts = {"GPU-1": {"kernels_refused": ["it was compiled again"]}, "GPU-0": {}}
    done = ExecutionResult((), (), (), facts=facts)
    (notice,) = run._kernel_notices(done)
    assert (notice.code, notice.gpu, notice.message) == ("KERNELS_NOT_SHARED", "GPU-1", "it was compiled again")
    assert notice.code in load_reasons()
