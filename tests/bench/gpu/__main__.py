"""`python -m tests.bench.gpu [--out DIR] [--standard] [STEP ...]`: the hardware day in one command of nine minutes.

State of the node, the tests on a GPU, a quick burn-in and the measurements, each a step of its own that may fail, hang
or crash without harm to the others; last, where the time is left, a standard burn-in (--standard: before the
measurements). After each step bench.json, bench.md (rows for docs/verified-hardware.md) and bench.log are in --out,
eight files at most with the reports of the burn-ins. Exit code 1 when a step was not done, 2 for a wrong argument.
Nothing is asserted of the figures: a person compares them with the goals in the table.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
from pathlib import Path

from tests.bench.gpu.plan import STEPS, TOTAL_S, chosen
from tests.bench.gpu.runner import ROOT, Runner, own_command
from tests.bench.gpu.table import markdown


def main() -> int:
    """Run the steps, print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"only these: {', '.join(one.name for one in STEPS)}")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder for the results, empty or new")
    parser.add_argument("--standard", action="store_true", help="the standard burn-in before what is measured")
    parser.add_argument("--total-s", type=float, default=TOTAL_S, help="seconds for everything (default: %(default)g)")
    options = parser.parse_args()
    try:
        steps = chosen(options.steps, options.standard)
    except ValueError as error:
        parser.error(str(error))
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        parser.error(f"{out} is not empty, and an older result might be taken for a new one: name another with --out")
    # Ended from outside, it still ends the step under way and prints what there is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runner = Runner(
        out, steps, own_command(out), datetime.datetime.now(datetime.UTC).date().isoformat(), options.total_s
    )
    try:
        runner.run()
    except KeyboardInterrupt:
        print("bench: ended from outside", file=sys.stderr)
    print(markdown(runner.result))
    return 0 if runner.complete else 1


if __name__ == "__main__":
    sys.exit(main())
