"""Reads an inventory with Ansible, in a process of its own: what `ansible-playbook` would see. No host is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from gpu_burnin.errors import GpuBurninError, install_hint
from gpu_burnin.fleet.plan.given import Given
from gpu_burnin.system.codec import Misfit, from_json
from gpu_burnin.system.temporary_folder import temporary_folder

_MOST_S = 600
_T = TypeVar("_T")


def read(inventory: Path) -> Given:
    """What the inventory says. Raises GpuBurninError where Ansible or the collection is missing, or refuses it."""
    if not inventory.exists():
        raise GpuBurninError(f"{inventory} does not exist; give the inventory as -i FOLDER")
    return ask(Given, "fleet_given", [str(inventory)], {}, f"{inventory} cannot be planned from")


def ask(kind: type[_T], action: str, inventory: Sequence[str], options: Mapping[str, Any], refused: str) -> _T:
    """What an action of the collection writes about an inventory, as a dataclass.

    `options` are the action's, `refused` begins the sentence where it fails. Raises GpuBurninError.
    """
    beside = Path(sys.executable).with_name("ansible")
    with temporary_folder("muster-given") as folder:
        dest = folder / "given.json"
        sources = [word for source in inventory for word in ("-i", source)]
        command = [str(beside) if beside.exists() else "ansible", *sources, "localhost", "-m", f"muster.fleet.{action}"]
        # The inventory may give localhost another connection; nothing is connected to.
        command += ["-a", json.dumps({**options, "dest": str(dest)})]
        plain = {
            **os.environ,
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        }
        try:
            done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=_MOST_S, check=False)
        except FileNotFoundError:
            raise GpuBurninError(f"ansible is not installed; {install_hint('controller')} brings it") from None
        except subprocess.TimeoutExpired:
            raise GpuBurninError(
                f"ansible did not read {', '.join(inventory)} within {_MOST_S} s; try `ansible-inventory`"
            ) from None
        if not dest.exists():
            raise GpuBurninError(f"{refused}: {_why(done.stdout + done.stderr)}")
        try:
            return from_json(kind, json.loads(dest.read_bytes()))
        except (Misfit, ValueError) as error:
            raise GpuBurninError(
                f"the collection's answer does not fit this muster ({error}); install both from one version"
            ) from error


def _why(output: str) -> str:
    """What Ansible said was wrong, in one line."""
    if "Cannot resolve 'muster.fleet." in output:
        return "the collection muster.fleet is not there; call muster in the checkout, or install the collection"
    for line in output.splitlines():
        text = line.strip().rstrip(",")
        if text.startswith('"msg": '):
            return " ".join(str(json.loads(text.removeprefix('"msg": '))).split("\n")).removeprefix("Task failed: ")
    lines = output.splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith(("[ERROR]", "ERROR!")):
            listed = takewhile(lambda one: one.startswith("- "), lines[number:])
            return " ".join([line.removeprefix("[ERROR]: "), *listed])
    return next((line for line in lines if line.strip()), "ansible said nothing")
