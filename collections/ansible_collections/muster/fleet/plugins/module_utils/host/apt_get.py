"""apt-get as the modules call it: without questions, waiting for its lock, and its errors in its own words."""

from __future__ import annotations

import re

LOCK_TIMEOUT_S = 300
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


def apt_get(lock_timeout_s: int = LOCK_TIMEOUT_S) -> list[str]:
    """The command without its verb: no recommended packages, configuration files that were changed stay."""
    return [
        "apt-get",
        "--quiet",
        "--yes",
        "--no-install-recommends",
        "--option=Dpkg::Options::=--force-confold",
        f"--option=DPkg::Lock::Timeout={lock_timeout_s}",
    ]


def apt_errors(output: str) -> str:
    """apt's own error lines, joined, after what it cannot satisfy; its last line when it marked none.

    What DKMS says of a module that a package could not build comes first: apt and dpkg tell no more than its exit code.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    unmet = [line for line in lines if " but it is not " in line or re.search(r" but \S+ is to be installed", line)]
    built = [line.removesuffix(" for more information.") for line in lines if line.startswith(("Error! ", "Consult /"))]
    errors = built + unmet + [line.removeprefix("E:").strip() for line in lines if line.startswith("E:")]
    return "; ".join(errors) or (lines[-1] if lines else "apt-get said nothing")
