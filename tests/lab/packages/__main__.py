"""`python -m tests.lab.packages [OUT_DIR]`: build the repository there, or in the cache, and print where it is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpu_burnin.errors import GpuBurninError

from ..error import LabError
from ..fake_nvml.build import BuildError
from .build import build, ensure_repository


def main() -> int:
    """0 when built, 2 with one sentence when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.packages", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, help="a folder that does not exist yet; default: the cache")
    out: Path | None = parser.parse_args().out
    try:
        if out is None:
            print(ensure_repository())
        elif out.exists():
            raise LabError(f"{out} exists: name a folder that does not")
        else:
            build(out)
            print(out)
    except (GpuBurninError, BuildError) as error:
        print(f"packages: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
