#!/usr/bin/python
"""Ansible module: all that the NVIDIA stack of a host depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.explain import nvml_problem
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import gather

DOCUMENTATION = r"""
module: gpu_facts
short_description: Read all that the NVIDIA stack of a host depends on
version_added: "0.2.0"
description:
  - Reads PCI bus, kernel, Secure Boot, driver, libraries, NVML, fabric, DCGM and container toolkit, in one call.
  - Changes nothing and needs no driver. With no module loaded NVML is not started, since its library would load one.
  - NVML is asked by a process of its own, which is killed when it gives no answer in time.
  - A fact that cannot be read is null, with its reason in C(errors).
options:
  kernel_root:
    description:
      - Folder with C(proc), C(sys) and C(lib/modules) of the kernel. For labs; any other than C(/) marks the facts as
        simulated.
    type: path
    default: /
  nvml_timeout_s:
    description: Longest wait for NVML, in seconds.
    type: float
    default: 60
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Read the facts of the GPUs
  muster.fleet.gpu_facts:
    nvml_timeout_s: 30
  register: gpu
"""

RETURN = r"""
nvml_problem:
  description: Why NVML does not work and what to do, in one sentence. Empty when it works.
  returned: success
  type: str
facts:
  description: The facts.
  returned: success
  type: dict
  contains:
    pci:
      description: NVIDIA's devices on the PCI bus, GPUs and others. Ids are hexadecimal digits.
      type: list
      elements: dict
      contains:
        address: {description: "Its address, such as C(0000:18:00.0).", type: str}
        vendor: {description: "C(10de).", type: str}
        device: {description: Device id., type: str}
        subsystem_vendor: {description: Vendor id of the board., type: str}
        subsystem_device: {description: Device id of the board., type: str}
        class_code: {description: "Six digits, C(0302) or C(0300) first for GPUs, C(0680) for NVSwitches.", type: str}
        bound_driver: {description: The kernel's driver of the device; empty for none., type: str}
    kernel:
      description: The running kernel.
      type: dict
      contains:
        release: {description: "As C(uname -r).", type: str}
        headers: {description: Whether modules can be built for it., type: bool}
        secure_boot: {description: "C(on) or C(off); off also where shim does not check.", type: str}
        signing_keys:
          description: Keys that DKMS signs with, and whether the firmware trusts each. Null with Secure Boot off.
          type: dict
        key_serials:
          description: By path of these keys the serial number of the certificate, where it can be read.
          type: dict
        cmdline: {description: Its command line., type: str}
        installed: {description: "Releases that a boot could take, oldest first.", type: list, elements: str}
        packages: {description: Packages of kernels and headers that are installed whole., type: list, elements: str}
    driver:
      description: The kernel modules and the packages of the driver.
      type: dict
      contains:
        loaded_version: {description: Version of the loaded module; empty for none., type: str}
        loaded_flavour: {description: "C(open), C(proprietary) or empty.", type: str}
        on_disk:
          description:
            - By kernel release the module that C(modprobe nvidia) would load, with version, flavour, signer and path.
            - The key is the serial number of the certificate that it is signed with; empty where none is told.
          type: dict
        packages:
          description:
            - dpkg's packages, with name, version, held and dpkg's state.
            - The source is C(nvidia), C(debian), C(ubuntu) or empty.
          type: list
          elements: dict
        nouveau: {description: Whether the kernel's own driver for NVIDIA GPUs is loaded., type: bool}
        runfile: {description: Whether NVIDIA's installer was run beside the package manager., type: bool}
        persistenced: {description: State of the service nvidia-persistenced., type: str}
    library:
      description: C(libnvidia-ml.so.1) as programs find it.
      type: dict
      contains:
        version: {description: Its version; empty when there is none., type: str}
        path: {description: Its path., type: str}
    nvml:
      description: NVML's answers.
      type: dict
      contains:
        error: {description: Empty when it works., type: str}
        code:
          description:
            - NVML's number, 0 when it works, 9 without driver, 12 without library, 18 when library and module differ.
            - Null when it gave no answer.
          type: int
        driver_version: {description: Version of the driver., type: str}
        library_version: {description: Version of the library., type: str}
        simulated: {description: Whether the GPUs are made up., type: bool}
        gpus:
          description: The GPUs. Modes are C(on), C(off) or C(unsupported); C(_pending) is the mode after a reset.
          type: list
          elements: dict
          contains:
            uuid: {description: UUID., type: str}
            pci: {description: Its address on the PCI bus., type: str}
            mig: {description: MIG., type: str}
            mig_pending: {description: MIG after a reset., type: str}
            ecc: {description: ECC., type: str}
            ecc_pending: {description: ECC after a reset., type: str}
            persistence: {description: Whether the driver keeps it awake., type: bool}
            power_limit_w: {description: Power limit in watts., type: float}
            fabric_state: {description: "C(not_supported), C(not_started), C(in_progress) or C(completed).", type: str}
            fabric_status: {description: NVML's code of the fabric., type: int}
            errors: {description: Why a value is null., type: dict}
    fabric:
      description: NVSwitches and what runs them.
      type: dict
      contains:
        platform:
          description: What connects the GPUs, as M(muster.fleet.nvidia_fabric) decides it.
          type: dict
          contains:
            kind:
              description:
                - C(nvswitch) up to NVLink 4, C(nvlink5) with switches behind bridges, C(rack) with switches in trays of
                  the rack, or C(none).
              type: str
            evidence: {description: What on the PCI bus shows it., type: str}
            tells: {description: "Whether NVML has to tell of the fabric, as since Hopper.", type: bool}
            gpus: {description: PCI addresses of the GPUs that have to be on the fabric., type: list, elements: str}
        nvswitches: {description: How many are on the PCI bus. Those of NVLink 5 are not., type: int}
        packages: {description: As those of the driver., type: list, elements: dict}
        service: {description: "State of nvidia-fabricmanager, as systemd's ActiveState, or C(not-found).", type: str}
    dcgm:
      description: DCGM.
      type: dict
      contains:
        packages: {description: As those of the driver., type: list, elements: dict}
        service: {description: State of nvidia-dcgm., type: str}
    toolkit:
      description: The container toolkit.
      type: dict
      contains:
        packages: {description: As those of the driver., type: list, elements: dict}
        version: {description: "What C(nvidia-ctk) says; empty when there is none.", type: str}
    simulated:
      description: Whether kernel or GPUs are made up.
      type: bool
    errors:
      description: By name of the fact why it is null.
      type: dict
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "kernel_root": {"type": "path", "default": "/"},
    "nvml_timeout_s": {"type": "float", "default": 60.0},
}


def read(module: AnsibleModule) -> dict[str, Any]:
    """All facts."""
    kernel_root, timeout_s = module.params["kernel_root"], module.params["nvml_timeout_s"]
    facts = gather(Path("/"), run_command, kernel_root=Path(kernel_root), nvml_timeout_s=timeout_s)
    return {"changed": False, "facts": facts.to_json(), "nvml_problem": nvml_problem(facts)}


def main() -> None:
    """Entry point."""
    run_module(read, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
