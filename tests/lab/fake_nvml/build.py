"""Build the fake libnvidia-ml.so.1 from the C sources beside this file: `python build.py OUT_DIR`.

Needs only a C compiler. The same as by hand:
cc -std=c11 -O1 -shared -fPIC -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 -o OUT_DIR/libnvidia-ml.so.1 *.c -lm
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
LIBRARY = "libnvidia-ml.so.1"
_WARNINGS = ("-Wall", "-Wextra", "-Werror")


class BuildError(Exception):
    """The library could not be built; the message says why and what to do."""


def build(out_dir: Path) -> Path:
    """Compile into `out_dir` (created if missing) and return the library's path; raises BuildError."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise BuildError("no C compiler found for the fake NVML library; install gcc or set CC")
    out_dir.mkdir(parents=True, exist_ok=True)
    library = out_dir / LIBRARY
    # Built under another name and renamed: a test that loads it meanwhile never sees half a file.
    partial = out_dir / f".{LIBRARY}.{os.getpid()}"
    command = [compiler, "-std=c11", "-O1", *_WARNINGS, "-shared", "-fPIC", "-fvisibility=hidden"]
    command += [f"-Wl,-soname,{LIBRARY}", "-o", str(partial), *map(str, sorted(SOURCES.glob("*.c"))), "-lm"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        partial.unlink(missing_ok=True)
        raise BuildError(f"{compiler} failed on the fake NVML library: {result.stderr.strip()}")
    partial.replace(library)
    return library


def main(arguments: list[str]) -> int:
    """Command line: one argument, the folder to build into."""
    if len(arguments) != 1:
        print("usage: build.py OUT_DIR", file=sys.stderr)
        return 2
    try:
        print(build(Path(arguments[0])))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
