"""`gpu-burnin demo`: a whole run on simulated GPUs, for somebody who wants to see one."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from gpu_burnin.cli import progress
from gpu_burnin.cli.outcome import print_report
from gpu_burnin.cli.terminal import width
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import load_skus
from gpu_burnin.report.file_names import REPORT_HTML
from gpu_burnin.report.headline import listed
from gpu_burnin.run import Outcome, RunOptions, run_burnin
from gpu_burnin.settings.config import Config
from gpu_burnin.system import private_shm
from gpu_burnin.system.interrupts import Interrupts
from gpu_burnin.system.prose import wrap
from gpu_burnin.system.streams import readers_may_leave
from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT, SimulatedNode, recorded_models

FOLDER = "gpu-burnin-demo"
MODEL = "h100-sxm5-80gb"
GPUS = 4
# GPU 1 is sick in what NVML and the kernel log say of it; GPU 3 computes wrongly, and nothing else says so.
LOUD, SILENT = 1, 3
LOUD_FAULT, SILENT_FAULT = "uncorrectable_ecc", "bitflip"
# Enough for a person to follow. The checks take a second of it at these sizes.
RUN_S = 8.0
# The same fault each time, so that the documentation can show it.
SEED = 1
SHAPES = {"gemm_m": 64, "gemm_n": 64, "gemm_k": 64, "hbm_bytes": 1 << 20}


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [key for key in recorded_models() if key.startswith(incomplete)]


@click.command()
@click.option("--sick", is_flag=True, help="Two of the GPUs are sick: one as its counters say, one in silence.")
@click.option("--model", metavar="KEY", default=MODEL, show_default=True, shell_complete=_complete, help="GPU model.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON and nothing else on stdout.")
@click.option("--open", "opens", is_flag=True, help="Open the page of the report in a browser.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    show_default=True,
    help="Where the files go, each time into a new folder.",
)
def demo(sick: bool, model: str, as_json: bool, opens: bool, out: Path) -> None:
    """Show a whole burn-in on simulated GPUs, in some seconds: all that a run does, shows and leaves.

    It needs no GPU, no driver, no root and no network. What the GPUs answer was recorded, this machine's CPU computes.
    The files of this host are left alone; its gate stays as it is. Exit code 0 PASS, with --sick 1 FAIL.
    """
    node = SimulatedNode(_known(model), GPUS, faults={LOUD: LOUD_FAULT} if sick else {})
    options = _options(node, _new_folder(out), sick)
    click.echo("\n".join(_before(model, sick)), err=True)
    private_shm.enter()
    with _asking_for(node):
        outcome = run_burnin(options, partial(progress.display, lines=progress.brief), Interrupts(last=True))
    with readers_may_leave(f"the report of this {outcome.verdict}"):
        print_report(outcome, as_json)
    told = [line for text in (*outcome.problems, *_after(outcome, sick)) for line in _wrapped(text)]
    click.echo("\n".join(told), err=True)
    page = outcome.run_dir / REPORT_HTML
    if opens and not webbrowser.open(page.as_uri()):
        click.echo(f"no browser could be started here: open {page} in one", err=True)
    sys.exit(outcome.exit_code)


def _known(model: str) -> str:
    models = recorded_models()
    if model not in models:
        near = [one for one in load_skus().near(model) if one in models]
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(models)}"
        raise GpuBurninError(f"--model {model}: nothing is recorded of such a GPU; {hint}")
    return model


def _new_folder(out: Path) -> Path:
    """A folder of this demo's own, so that what came of another changes nothing. Raises GpuBurninError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                (out / str(number)).mkdir(mode=0o700)
                break
    except OSError as error:
        raise GpuBurninError(f"{out} cannot be written ({error.strerror}); give --out a folder of yours") from error
    return (out / str(number)).absolute()


def _options(node: SimulatedNode, folder: Path, sick: bool) -> RunOptions:
    """A run that knows nothing of this host's configuration, state and keys."""
    kernel_log = folder / "kernel.log"
    kernel_log.write_text(node.kernel_log())
    config = Config(
        allow_simulated=True,
        backend="cpu",
        node_name=FOLDER,
        host_key=_throwaway_key(folder),
        kernel_log=str(kernel_log),
        state_dir=folder,
        shapes=SHAPES,
    )
    inject = (f"gemm:{SILENT_FAULT}:gpu={SILENT}",) if sick else ()
    return RunOptions(config=config, level="quick", inject=inject, seed=SEED, cpu_time_s=RUN_S, asks_for_extended=False)


def _throwaway_key(folder: Path) -> Path:
    """A key to sign with as a node does; without ssh-keygen there is none, and the report says so."""
    path = folder / "throwaway_key"
    if shutil.which("ssh-keygen"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", FOLDER, "-f", str(path)]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    return path


@contextlib.contextmanager
def _asking_for(node: SimulatedNode) -> Iterator[None]:
    """The environment in which this process' children find these GPUs."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = node.to_text()
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = before


def _before(model: str, sick: bool) -> Iterator[str]:
    yield f"{GPUS} simulated GPUs ({model}): recorded answers in place of NVML,"
    yield "this machine's CPU in place of theirs."
    if sick:
        yield f"Planted in GPU {LOUD}: uncorrectable memory errors. NVML and the kernel log tell."
        yield f"Planted in GPU {SILENT}: a wrong bit in one matrix product. Nothing tells."


def _wrapped(text: str) -> list[str]:
    indent = text[: len(text) - len(text.lstrip())]
    return wrap(text.lstrip(), width(), indent, f"{indent}  ") or [""]


def _after(outcome: Outcome, sick: bool) -> Iterator[str]:
    """What there was to see, by what the run found."""
    yield ""
    blamed = {reason.gpu for reason in outcome.judgement.reasons if reason.severity == outcome.verdict}
    yield ": ".join(
        filter(None, (outcome.verdict, listed([f"GPU {gpu.index}" for gpu in outcome.plan.gpus if gpu.uuid in blamed])))
    )
    for gpu in outcome.plan.gpus:
        reasons = [reason for reason in outcome.judgement.reasons if reason.gpu == gpu.uuid]
        if reasons:
            yield f"GPU {gpu.index}: {', '.join(dict.fromkeys(reason.code for reason in reasons))}"
        if reasons and all(reason.check == "gemm" for reason in reasons):
            yield "  No counter and no line of the kernel log is against this GPU."
            yield "  The exact product alone shows the fault, element and bits:"
            yield from (f"  {reason.message}" for reason in reasons)
    if sick:
        yield "The GPUs are simulated, the faults planted by the demo: this shows the program, no real GPU."
        yield "Nothing is to be done here; on real GPUs the order above would say what."
    else:
        yield "The GPUs are simulated: this PASS shows the program, and counts nowhere."
    folder = _short(outcome.run_dir.parents[1])
    yield f"page:  {folder}/latest/{REPORT_HTML} (for a browser; --open opens it)"
    yield f"again: gpu-burnin report {folder}"
    yield f"next:  gpu-burnin {'explain GEMM_MISMATCH' if sick else 'demo --sick'}"


def _short(path: Path) -> str:
    """The path as a person would type it here."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
