"""What a node is tuned to, each value with its reason and its source: the one table of the role and of its page.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

# The kinds of a setting: where its effective value is read, and which file keeps it over a reboot.
SYSCTL, SYSFS, MANAGER, MODULE = "sysctl", "sysfs", "manager", "module"
GPU, SYSTEM, NONE = "gpu", "system", "none"
PROFILES = (GPU, SYSTEM, NONE)
# A value that leaves the setting to whoever else sets it.
LEAVE = "leave"
OFF = "off"


@dataclass(frozen=True)
class Setting:
    """One setting. `where` is its sysctl key, the glob of its files below /, its key in system.conf, or its module.

    `per_namespace`: each container that is a host has its own; every other one is the kernel's, which a lab's hosts
    share.
    """

    name: str
    kind: str
    where: str
    value: str
    profiles: tuple[str, ...]
    reason: str
    source: str
    per_namespace: bool = False


def _sysctl(
    key: str, value: str, profiles: tuple[str, ...], reason: str, source: str, per_namespace: bool = False
) -> Setting:
    return Setting(key, SYSCTL, key, value, profiles, reason, source, per_namespace)


_NODE = (GPU, SYSTEM)
_OPENAI = "OpenAI, Scaling Kubernetes to 2,500 nodes"
_NEIGHBOURS = (
    "In a flat network a node talks to thousands of others; the kernel's tables end at 1024 neighbours, then packets "
    "are lost and the kernel log says `neighbor table overflow!`."
)
_NEIGHBOURS_IPV6 = "The same for IPv6, whose table is a table of its own."

SETTINGS: tuple[Setting, ...] = (
    _sysctl("net.ipv4.neigh.default.gc_thresh1", "80000", _NODE, _NEIGHBOURS, _OPENAI),
    _sysctl("net.ipv4.neigh.default.gc_thresh2", "90000", _NODE, _NEIGHBOURS, _OPENAI),
    _sysctl("net.ipv4.neigh.default.gc_thresh3", "100000", _NODE, _NEIGHBOURS, _OPENAI),
    _sysctl("net.ipv6.neigh.default.gc_thresh1", "80000", _NODE, _NEIGHBOURS_IPV6, _OPENAI),
    _sysctl("net.ipv6.neigh.default.gc_thresh2", "90000", _NODE, _NEIGHBOURS_IPV6, _OPENAI),
    _sysctl("net.ipv6.neigh.default.gc_thresh3", "100000", _NODE, _NEIGHBOURS_IPV6, _OPENAI),
    _sysctl(
        "net.core.somaxconn",
        "16384",
        _NODE,
        "All ranks of a job connect to one at its start. NCCL asks for a queue of 16384; the kernel cuts it to this "
        "value, 4096 unless set.",
        "NCCL, src/misc/socket.cc, ncclSocketListen",
        per_namespace=True,
    ),
    _sysctl(
        "fs.inotify.max_user_instances",
        "8192",
        _NODE,
        "Each containerd-shim, and kubelet, has inotify instances, all of them root's: 128 are used up by some dozen "
        "pods, and the next one fails with `too many open files`.",
        "kops, pull request 2913; k0s, issue 8113",
    ),
    _sysctl(
        "fs.inotify.max_user_watches",
        "1048576",
        _NODE,
        "Readers of logs watch each file of each container; when the watches are used up, they and kubelet miss "
        "changes.",
        "inotify(7); what a watch costs, about 1 KiB of kernel memory, is paid when it is made",
    ),
    _sysctl(
        "kernel.numa_balancing",
        "0",
        (GPU,),
        "The kernel unmaps pages to see who uses them and moves them. Jobs are bound to their GPU's NUMA node already, "
        "and pinned pages cannot move: what is left are page faults in the midst of a step.",
        "Kernel documentation, admin-guide/sysctl/kernel, numa_balancing",
    ),
    Setting(
        "transparent_hugepage",
        SYSFS,
        "sys/kernel/mm/transparent_hugepage/enabled",
        "madvise",
        (GPU,),
        "Programs that gain from huge pages ask for them; with `always` every other one pays for the kernel's search "
        "for free huge pages, at a time that nobody chose.",
        "Kernel documentation, admin-guide/mm/transhuge",
    ),
    Setting(
        "cpu_governor",
        SYSFS,
        "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        "performance",
        (GPU,),
        "Between two steps the CPU idles while GPUs work. A governor that lowers the clock then makes each launch of "
        "the next step slower, on all GPUs of a job when it does so on one.",
        "Kernel documentation, admin-guide/pm/cpufreq",
    ),
    Setting(
        "limit_nofile",
        MANAGER,
        "DefaultLimitNOFILE",
        "65536:1048576",
        _NODE,
        "Containers have the limits of containerd. Loaders of training data pass open files between processes and "
        "reach the usual 1024.",
        "systemd-system.conf(5); PyTorch, torch.multiprocessing, sharing strategies",
        per_namespace=True,
    ),
    Setting(
        "limit_memlock",
        MANAGER,
        "DefaultLimitMEMLOCK",
        "infinity",
        (GPU,),
        "RDMA pins gigabytes. Kubernetes has no field for it: a container has containerd's 8 MiB, registering memory "
        "fails and NCCL falls back to TCP without an error.",
        "NVIDIA container toolkit, issue 2037",
        per_namespace=True,
    ),
    Setting(
        "nouveau",
        MODULE,
        "nouveau",
        OFF,
        (GPU,),
        "It takes the GPU at boot, and NVIDIA's driver then does not load.",
        "NVIDIA driver installation guide, Disabling Nouveau",
        per_namespace=True,
    ),
)


@dataclass(frozen=True)
class Wanted:
    """A setting and the value it should have on this host."""

    setting: Setting
    value: str


def wanted(profile: str, values: Mapping[str, str]) -> tuple[Wanted, ...]:
    """The settings of a profile with the inventory's own values, and the sysctl keys that it adds.

    Raises FleetError for a name that is neither in the table nor a sysctl key.
    """
    if profile == NONE:
        if values:
            raise FleetError("node_tuning_values has values and node_tuning_profile is none: remove one of the two")
        return ()
    known = {setting.name: setting for setting in SETTINGS}
    own = {_name(name): value for name, value in values.items()}
    for name in sorted(set(own) - set(known)):
        if "." not in name:
            raise FleetError(
                f"node_tuning_values has {name!r}, which is no setting and no sysctl key; known are "
                f"{', '.join(sorted(name for name in known if '.' not in name))}, and keys such as vm.max_map_count"
            )
        # Nobody knows of such a key whether it is the kernel's: it counts as such.
        known[name] = _sysctl(name, own[name], _NODE, "set by the inventory", "node_tuning_values")
    named = (
        Wanted(setting, own.get(name, setting.value))
        for name, setting in known.items()
        if profile in setting.profiles or name in own
    )
    return tuple(item for item in named if item.value != LEAVE)


def _name(key: str) -> str:
    """A sysctl key with dots, however it was written."""
    return key.replace("/", ".") if "/" in key.partition(".")[0] else key
