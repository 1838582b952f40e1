"""What this machine was given to enrol with: by a file that user-data wrote, or by the kernel's command line."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpu_burnin.api.enrolment import KERNEL_ARGUMENT, EnrolmentError, Handed, parse_handed
from gpu_burnin.system.files import read_text
from gpu_burnin.system.own_name import host_name

FILE = "etc/muster/enrol"
_CMDLINE = "proc/cmdline"


def given(root: Path = Path("/")) -> Handed:
    """The node's name and the token. Raises EnrolmentError where there is none, or there are two."""
    file = root / FILE
    try:
        found = [text] if (text := read_text(file).strip()) else []
    except FileNotFoundError:
        found = []
    except (OSError, UnicodeDecodeError) as error:
        raise EnrolmentError(f"{host_name()}: cannot read {file} ({error}); write it again") from error
    words = read_text(root / _CMDLINE, errors="replace").split()
    found += [word.partition("=")[2] for word in words if word.startswith(f"{KERNEL_ARGUMENT}=")]
    if not found:
        raise EnrolmentError(
            f"{host_name()}: this machine was given no token, neither in {file} (by user-data) nor as "
            f"{KERNEL_ARGUMENT}=NODE:ID.SECRET on the kernel's command line; make one (muster image token)"
        )
    if len(set(found)) > 1:
        raise EnrolmentError(
            f"{host_name()}: this machine was given {len(set(found))} different tokens, by {file} and the "
            "kernel's command line; leave one"
        )
    return parse_handed(found[0])


def forget(root: Path = Path("/")) -> None:
    """Remove the file: its token is used up."""
    with contextlib.suppress(FileNotFoundError):
        (root / FILE).unlink()
