"""Why NVML does not work here, in words: its own answer is a number, the facts around it are the reason."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.nvidia import nvml
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import Facts


def nvml_problem(facts: Facts) -> str:
    """One sentence with what to do, without the host's name and a full stop; empty when NVML works."""
    if not facts.nvml.error:
        return ""
    if facts.nvml.code == nvml.LIBRARY_NOT_FOUND:
        return "libnvidia-ml.so.1 is not installed; install the driver's libraries"
    if facts.nvml.code == nvml.DRIVER_NOT_LOADED:
        return _not_loaded(facts)
    if facts.nvml.code == nvml.LIBRARY_MISMATCH:
        return _mismatch(facts)
    if facts.nvml.code == nvml.NO_PERMISSION:
        return "NVML refuses access to the GPUs (error 4); look at the owner and mode of /dev/nvidia*"
    return f"{facts.nvml.error}; look at the kernel log for lines with NVRM, then reboot"


def _not_loaded(facts: Facts) -> str:
    """NVML's error 9, which nvidia-smi words as: couldn't communicate with the NVIDIA driver."""
    what = "the NVIDIA driver is not loaded (NVML error 9): "
    release, on_disk = facts.kernel.release, facts.driver.on_disk
    if facts.driver.loaded_version:
        return (
            f"{what}its module {facts.driver.loaded_version} is, but does not answer; look at the kernel log for NVRM"
        )
    if release is not None and on_disk is not None and release not in on_disk:
        others = f", only for {', '.join(sorted(on_disk))}" if on_disk else ""
        return f"{what}there is no module for the running kernel {release}{others}; build or install it for that kernel"
    module = (on_disk or {}).get(release or "")
    if facts.driver.nouveau:
        return f"{what}nouveau is; keep nouveau from loading (modprobe.d), make the initramfs again, reboot"
    if module is not None and not module.signer and facts.kernel.secure_boot == "on":
        return (
            f"{what}Secure Boot is on and {module.path} is signed by nobody; sign it with a key that the firmware "
            "trusts, or switch Secure Boot off"
        )
    if not facts.gpus:
        return f"{what}no NVIDIA GPU is on the PCI bus; look at lspci and the machine's event log"
    return f"{what}run `modprobe nvidia`, and look at the kernel log if that fails"


def _mismatch(facts: Facts) -> str:
    """NVML's error 18, which nvidia-smi words as: Driver/library version mismatch."""
    library = facts.library.version or facts.nvml.library_version or "of an unknown version"
    loaded = facts.driver.loaded_version or "of an unknown version"
    what = f"libnvidia-ml is {library} and the loaded kernel module is {loaded} (NVML error 18)"
    module = (facts.driver.on_disk or {}).get(facts.kernel.release or "")
    if module is not None and module.version == facts.library.version:
        return f"{what}: the driver was changed and the old module still runs; reboot, or unload and load the module"
    on_disk = f"the module on the disk for this kernel is {module.version}" if module else "this kernel has no module"
    return f"{what}, and {on_disk}: a reboot does not help; install module and libraries of one version"
