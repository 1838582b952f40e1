"""The kernel's tools of a lab host: modprobe, rmmod, modinfo, lsmod, dkms, mokutil, and lab-nvidia that changes all.

Each answers for the stand-in modules; anything else goes on to the real program.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import scenario
from .kernel import BUILT_IN, MARK, Kernel, KernelError, describe

KMOD = "/usr/bin/kmod"
DKMS_TREE = "var/lib/dkms"
SIGNER = "DKMS module signing key"
_OPTIONS_WITH_VALUE = (
    "-F",
    "--field",
    "-k",
    "--set-version",
    "-d",
    "--dirname",
    "-C",
    "--config",
    "-b",
    "--basedir",
    "-S",
)


def main(words: Sequence[str], top: Path | None = None) -> int:
    """Run the tool that the first word names; its exit code."""
    name, arguments = Path(words[0]).name, list(words[1:])
    tools: dict[str, Callable[[Kernel, list[str]], int]] = {
        "modprobe": modprobe,
        "rmmod": lambda kernel, rest: modprobe(kernel, ["-r", *rest]),
        "modinfo": modinfo,
        "lsmod": lsmod,
        "dkms": dkms,
        "mokutil": mokutil,
        "lab-nvidia": lab_nvidia,
    }
    try:
        return tools[name](Kernel(top or scenario.root()), arguments)
    except (KernelError, scenario.ScenarioError) as error:
        fatal = "FATAL" if "not found" in str(error) else "ERROR"
        print(f"{name}: {fatal}: {error}", file=sys.stderr)
        return 1


# ---- kmod ----


def modprobe(kernel: Kernel, arguments: list[str]) -> int:
    """Load modules, or with -r unload them."""
    options, names = _split(arguments)
    if not names or not all(_known(name) for name in names):
        return _real("modprobe", arguments)
    release = options.get("-S") or kernel.release
    if any(word in ("-n", "--dry-run", "-D", "--show-depends") for word in arguments):
        for name in names:
            path = kernel.module(name.replace("_", "-"), release)
            if path is None and name not in BUILT_IN:
                raise KernelError(f"Module {name} not found in directory /lib/modules/{release}")
            print(f"insmod {path or name}")
        return 0
    remove = any(word in ("-r", "--remove") for word in arguments)
    for name in names:
        if remove:
            kernel.unload(name)
        else:
            # -a and several names: all are modules. Else what follows the first name are its parameters.
            kernel.load(name)
        if not remove and "-a" not in arguments and "--all" not in arguments:
            break
    return 0


def modinfo(kernel: Kernel, arguments: list[str]) -> int:
    """Describe modules, by name or by file; `-F FIELD` prints one field."""
    options, names = _split(arguments)
    files = [Path(name) for name in names if "/" in name]
    if not names or not all(_known(name) or (name in map(str, files) and _is_ours(Path(name))) for name in names):
        return _real("modinfo", arguments)
    release = options.get("-k") or options.get("--set-version") or kernel.release
    field = options.get("-F") or options.get("--field") or ("filename" if "-n" in options else "")
    for name in names:
        path = Path(name) if "/" in name else kernel.module(name.replace("_", "-"), release)
        if path is None:
            raise KernelError(f"Module {name} not found.")
        fields = {"filename": str(path), **describe(path)}
        if field:
            print(fields.get(field, ""))
        else:
            print("".join(f"{key + ':':<16}{value}\n" for key, value in fields.items()), end="")
    return 0


def lsmod(kernel: Kernel, arguments: list[str]) -> int:
    """List the loaded modules of the stand-in kernel."""
    print("Module                  Size  Used by")
    for line in (kernel.tree / "proc/modules").read_text().splitlines():
        name, size, *_ = line.split()
        print(f"{name:<20} {size:>7}  0")
    return 0


def _known(name: str) -> bool:
    return "/" not in name and (name.startswith("nvidia") or name in BUILT_IN)


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.read_bytes().startswith(MARK.encode())
    return False


def _split(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values, and the other words."""
    options: dict[str, str] = {}
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-"):
            words.append(word)
        elif "=" in word:
            key, _, value = word.partition("=")
            options[key] = value
        else:
            options[word] = next(rest, "") if word in _OPTIONS_WITH_VALUE else ""
    return options, words


def _real(name: str, arguments: list[str]) -> int:
    """Replace this process by kmod, which is modinfo, modprobe and others by its first word."""
    try:
        os.execv(KMOD, [name, *arguments])
    except FileNotFoundError:
        print(f"{name}: ERROR: {KMOD} is not installed", file=sys.stderr)
        return 1


# ---- dkms ----


def dkms(kernel: Kernel, arguments: list[str]) -> int:
    """Build, remove and list the modules of the sources below /usr/src, as dkms 3 does."""
    options, words = _split_dkms(arguments)
    action = words[0] if words else "status"
    name, _, version = (words[1] if len(words) > 1 else "nvidia/").partition("/")
    version = version or options.get("-v", "")
    if action == "status":
        return _dkms_status(kernel)
    if action == "autoinstall":
        release = options.get("-k") or kernel.release
        return max((_dkms_install(kernel, *module, release) for module in _dkms_added(kernel)), default=0)
    if action == "add":
        (kernel.top / DKMS_TREE / name / version).mkdir(parents=True, exist_ok=True)
        return 0
    if action in ("build", "install"):
        return _dkms_install(kernel, name, version, options.get("-k") or kernel.release)
    if action in ("remove", "uninstall"):
        kernel.remove_module(version)
        if action == "remove":
            _dkms_forget(kernel, name, version)
        return 0
    print(f"Error! Unknown action specified: {action}", file=sys.stderr)
    return 1


def _split_dkms(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word in ("-k", "-v", "-m", "-a", "-c"):
            options[word] = next(rest, "")
        elif not word.startswith("-"):
            words.append(word)
    if "-m" in options:
        words.insert(1, options["-m"])
    return options, words


def _dkms_install(kernel: Kernel, name: str, version: str, release: str) -> int:
    elsewhere = str(kernel.scenario["module_kernel"])
    source = kernel.top / f"usr/src/{name}-{version}/dkms.conf"
    if not source.exists():
        print(f"Error! Could not find module source directory. Directory: {source.parent}", file=sys.stderr)
        return 3
    if not elsewhere and not (kernel.tree / "lib/modules" / release / "build/Makefile").exists():
        print(
            f"Error! Your kernel headers for kernel {release} cannot be found at /lib/modules/{release}/build.\n"
            f"Please install the linux-headers-{release} package or use the --kernelsourcedir option.",
            file=sys.stderr,
        )
        return 1
    if kernel.scenario["dkms_fails"]:
        print(f"Error! Bad return status for module build on kernel: {release} (x86_64)", file=sys.stderr)
        return 10
    match = re.search(r'^FLAVOUR="(\w+)"', source.read_text(), re.MULTILINE)
    signer = SIGNER if kernel.scenario["secure_boot"] else ""
    kernel.add_module(elsewhere or release, version, match[1] if match else "open", signer)
    if signer:
        key = kernel.top / DKMS_TREE / "mok.pub"
        key.parent.mkdir(parents=True, exist_ok=True)
        key.write_text("stand-in of a certificate\n")
    (kernel.top / DKMS_TREE / name / version / (elsewhere or release)).mkdir(parents=True, exist_ok=True)
    return 0


def _dkms_added(kernel: Kernel) -> list[tuple[str, str]]:
    return [(path.parent.name, path.name) for path in sorted((kernel.top / DKMS_TREE).glob("*/*")) if path.is_dir()]


def _dkms_status(kernel: Kernel) -> int:
    for name, version in _dkms_added(kernel):
        releases = [path.name for path in sorted((kernel.top / DKMS_TREE / name / version).iterdir())]
        for release in releases:
            print(f"{name}/{version}, {release}, x86_64: installed")
        if not releases:
            print(f"{name}/{version}: added")
    return 0


def _dkms_forget(kernel: Kernel, name: str, version: str) -> None:
    folder = kernel.top / DKMS_TREE / name / version
    for path in folder.glob("*"):
        path.rmdir()
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


# ---- Secure Boot ----


def mokutil(kernel: Kernel, arguments: list[str]) -> int:
    """--sb-state and --test-key, as the scenario says."""
    if "--sb-state" in arguments:
        print(f"SecureBoot {'enabled' if kernel.scenario['secure_boot'] else 'disabled'}")
        return 0
    if "--test-key" in arguments or "-t" in arguments:
        enrolled = bool(kernel.scenario["key_enrolled"])
        print(f"{arguments[-1]} is {'already' if enrolled else 'not'} enrolled")
        return 1 if enrolled else 0
    print("mokutil: this stand-in knows --sb-state and --test-key", file=sys.stderr)
    return 1


# ---- the lab ----


def lab_nvidia(kernel: Kernel, arguments: list[str]) -> int:
    """`boot`; `set KEY=VALUE...` (JSON); `log TEXT`; `kernel`, `headers` and `package` as their packages do."""
    match arguments:
        case ["boot"]:
            kernel.boot()
        case ["set", *pairs] if pairs and all("=" in pair for pair in pairs):
            values = {key: json.loads(value) for key, _, value in (pair.partition("=") for pair in pairs)}
            scenario.change(kernel.top, values)
        case ["kernel", release]:
            (kernel.tree / "lib/modules" / release).mkdir(parents=True, exist_ok=True)
            scenario.change(kernel.top, {"kernel": release})
        case ["headers", release]:
            kernel.add_headers(release)
            # As /etc/kernel/header_postinst.d/dkms does.
            return dkms(kernel, ["autoinstall", "-k", release])
        case ["no-headers", release]:
            kernel.remove_headers(release)
        case ["package", name]:
            _interrupt(kernel, name)
        case ["log", text]:
            kernel.log(text)
        case _:
            print(
                "lab-nvidia: boot | set KEY=JSON... | log TEXT | kernel RELEASE | headers RELEASE | package NAME",
                file=sys.stderr,
            )
            return 2
    return 0


def _interrupt(kernel: Kernel, name: str) -> None:
    """End apt and dpkg as a power cut does, when the scenario says so of this package: once."""
    names = list(kernel.scenario["interrupt"])
    if name not in names:
        return
    names.remove(name)
    scenario.change(kernel.top, {"interrupt": names})
    for pid in _installers(os.getppid()):
        os.kill(pid, signal.SIGKILL)


def _installers(pid: int) -> list[int]:
    """The processes of apt and dpkg above a process, the outermost first: it must not clean up after the others."""
    found: list[int] = []
    while pid > 1:
        status = Path("/proc", str(pid), "status").read_text()
        name = status.split("\n", 1)[0].split("\t")[1]
        if name in ("dpkg", "apt-get", "apt", "aptitude"):
            found.insert(0, pid)
        match = re.search(r"^PPid:\t(\d+)", status, re.MULTILINE)
        pid = int(match[1]) if match else 0
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv))
