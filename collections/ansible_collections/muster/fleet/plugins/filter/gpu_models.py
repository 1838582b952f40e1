"""Jinja filter: what the modules on the hosts need to know of GPU models, out of gpu-burnin's data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from ansible.errors import AnsibleFilterError

from gpu_burnin.hardware import DriverNeeds, load_drivers, load_skus

DOCUMENTATION = r"""
name: gpu_models
short_description: Which driver each GPU model and each CUDA version needs
version_added: "0.2.0"
description:
  - Gives the data of C(gpu-burnin) (C(hardware/skus.yaml), C(hardware/drivers.yaml)) in the form that modules on the
    hosts take. GPUs that are no model of it are judged by the architecture of their PCI id.
  - It is JSON text, which an option of type C(dict) takes and Ansible need not look through for each host.
options:
  _input:
    description: Keys of models, or C(all).
    type: raw
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
models: "{{ 'all' | muster.fleet.gpu_models }}"
# => {models: [{device: "2330", subsystems: ["16c1"], modules: either, since_driver: "520", until_branch: null, ...}],
#     architectures: [{name: volta, device_ids: [[7552, 7679]], modules: proprietary, until_branch: 580, ...}],
#     branches: [450, 455], kernel: "4.15", cuda: {"12": 525.60.13}}
"""

RETURN = r"""
_value:
  description: Models, architectures, driver branches, oldest kernel, and oldest driver by major CUDA version, as JSON.
  type: str
"""


def gpu_models(keys: str | Iterable[str]) -> str:
    """The data of some models, or of all, as JSON. Raises AnsibleFilterError for one that is not known."""
    return _text(None if keys == "all" else tuple([keys] if isinstance(keys, str) else keys))


@cache
def _text(wanted: tuple[str, ...] | None) -> str:
    table = _table()
    if wanted is not None:
        known = {model["key"]: model for model in table["models"]}
        unknown = [key for key in wanted if key not in known]
        if unknown:
            raise AnsibleFilterError(f"gpu_models: no GPU model {', '.join(unknown)}; choose from {', '.join(known)}")
        table["models"] = [known[key] for key in wanted]
    return json.dumps(table)


def _table() -> dict[str, Any]:
    drivers = load_drivers()
    models = [
        {
            "key": key,
            "name": sku.name,
            "device": f"{sku.device_id:04x}",
            "subsystems": [f"{number:04x}" for number in sku.subsystem_ids],
            **_needs(sku.driver or drivers.architectures[sku.architecture].driver),
        }
        for key, sku in load_skus().skus.items()
    ]
    architectures = [
        {"name": one.name, "device_ids": [[ids[0], ids[-1]] for ids in one.device_ids], **_needs(one.driver)}
        for one in drivers.architectures.values()
    ]
    return {
        "models": models,
        "architectures": architectures,
        "branches": drivers.branches,
        "kernel": drivers.kernel,
        "cuda": dict(drivers.cuda),
    }


def _needs(needs: DriverNeeds) -> dict[str, Any]:
    return {
        "modules": str(needs.modules),
        "since_driver": needs.since_driver,
        "until_branch": needs.until_branch,
    }


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"gpu_models": gpu_models}
