"""Run the fault campaign: `python -m tests.campaign [--seed N] [--jobs N] [--each N] [TEST ...]`.

Exit code 0 when every case is right.
"""

from __future__ import annotations

import argparse
import os
import sys

import pytest

from tests.campaign.model import DEFAULT_SEED, SEED_VARIABLE
from tests.campaign.plugin import BUILD, HERE


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    made.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"seed of all cases (default {DEFAULT_SEED})")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    made.add_argument("--each", type=int, default=1, help="from 2: only every Nth draw of all, and no repeats")
    made.add_argument("-k", dest="expression", default="", help="only cases whose name matches, as pytest's -k")
    made.add_argument("tests", nargs="*", help="only these tests, as a failed case prints them")
    return made


def main() -> int:
    """Parse, then let pytest run the cases."""
    made = parser()
    asked = made.parse_args()
    if asked.each < 1:
        made.error(f"--each {asked.each}: it counts from 1, which runs every draw")
    os.environ[SEED_VARIABLE] = str(asked.seed)
    os.chdir(HERE.parents[1])
    BUILD.mkdir(exist_ok=True)
    arguments = ["-qq", "--no-header", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider"]
    arguments += ["-p", "tests.campaign.plugin", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments += [f"--each={asked.each}"]
    if asked.expression:
        arguments += ["-k", asked.expression]
    elif not asked.tests:
        arguments += [f"--junitxml={BUILD / 'campaign.xml'}"]
    if asked.jobs > 1 and not asked.tests:
        arguments += ["-n", str(asked.jobs)]
    return int(pytest.main([*arguments, *(asked.tests or [str(HERE)])]))


if __name__ == "__main__":
    sys.exit(main())
