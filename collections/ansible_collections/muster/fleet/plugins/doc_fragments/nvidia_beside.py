"""Documentation that modules share: what a host takes beside its driver (options: module_utils/nvidia/beside.py)."""

from __future__ import annotations

from textwrap import indent

_PARTS = r"""
dcgm_version:
  description: Version of DCGM; empty installs none.
  type: str
  default: ""
dcgm_exporter_version:
  description: Version of DCGM's exporter; empty installs none.
  type: str
  default: ""
dcgm_cuda:
  description: For which CUDA release the tests of DCGM are installed.
  type: str
  default: "13"
toolkit_version:
  description: Version of the container toolkit from the repository; empty installs none from there.
  type: str
  default: ""
nvlsm_version:
  description: Version of nvlsm, where the host needs it; empty for any.
  type: str
  default: ""
imex:
  description: Whether the host runs IMEX.
  type: bool
  default: false
"""


class ModuleDocFragment:
    """Parts of DOCUMENTATION; see extends_documentation_fragment."""

    DOCUMENTATION = "options:" + indent(_PARTS, "  ")

    # The same within the option `nvidia`: a fragment gives whole options.
    NVIDIA = rf"""
options:
  nvidia:
    description: What is asked of the NVIDIA stack of a GPU node. Only what its source makes relevant is looked at.
    type: dict
    suboptions:
{indent(_PARTS.lstrip(), "      ")}
      source:
        description: Where the stack comes from.
        type: str
        choices: [image, nvidia, debian, ubuntu]
        required: true
      driver_version:
        description: Exact version of the driver; empty accepts any that fits.
        type: str
        default: ""
      modules:
        description: Kernel modules that are asked for; C(auto) those that the GPUs need.
        type: str
        choices: [auto, open, proprietary]
        default: auto
      cuda:
        description: Major CUDA version of the burn-in's libraries, or C(none).
        type: str
        default: none
      repository_url:
        description: NVIDIA's package repository. It is asked where something is to be installed from it.
        type: str
        default: ""
      min_free_bytes:
        description: Space that must be free where packages and modules are installed.
        type: int
        default: 0
      models:
        description: What GPU models need, as the filter P(muster.fleet.gpu_models#filter) gives it.
        type: dict
        required: true
      kernel_root:
        description: Folder with C(proc), C(sys) and C(lib/modules) of the kernel. For labs.
        type: path
        default: /
      timeout_s:
        description: Longest wait for the repository, in seconds.
        type: float
        default: 5
      nvml_timeout_s:
        description: Longest wait for NVML, in seconds.
        type: float
        default: 60
"""
