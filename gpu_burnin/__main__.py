"""`gpu-burnin`, `python -m gpu_burnin` and `muster`: the process from its first line to its exit code.

Imports next to nothing before it can be interrupted: the command line alone takes a third of a second.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Entry point of `gpu-burnin`."""
    _process("gpu-burnin", "gpu_burnin.cli.main")


def muster() -> None:
    """Entry point of `muster`."""
    _process("muster", "gpu_burnin.cli.muster.main")


def _process(name: str, module: str) -> None:
    """Runs a command and exits with its code, which is 1 for nothing but a negative answer."""
    try:
        from gpu_burnin.system.streams import drop_output, open_streams

        open_streams()
        code = _command(name, module)
        # What follows is the end of the interpreter, which a Ctrl-C must not turn into another exit code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            sys.stdout.flush()
        except OSError:
            drop_output()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = 3
        try:  # noqa: SIM105 contextlib takes its time
            os.write(2, f"{name}: interrupted before there was a result\n".encode())
        except OSError:
            pass  # nobody can be told
    sys.exit(code)


def _command(name: str, module: str) -> int:
    try:
        import importlib

        from gpu_burnin.cli.program import call

        return call(importlib.import_module(module).cli)
    except Exception as error:  # an installation that is not whole; 1 would say FAIL
        print(f"{name}: cannot be started ({error!r}); install it again", file=sys.stderr)
        return 3


if __name__ == "__main__":
    main()
