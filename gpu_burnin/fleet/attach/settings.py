"""What an attached cluster is made of, as the user says it: typed, and small."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_burnin.api.attached import GpuNodes, Mode
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.names import Names
from gpu_burnin.errors import GpuBurninError

# Who adds the preflight taint to a new GPU Node.
WEBHOOK_TAINTS, POLICY_TAINTS = "webhook", "policy"
IMAGE = re.compile(r"[a-z0-9]([a-z0-9._/:-]*[a-z0-9])?(:[\w.-]{1,128})?(@sha256:[0-9a-f]{64})?")
PATH = re.compile(r"/[\w./-]*")
# The group of the definitions: two labels of DNS or more.
DOMAIN = re.compile(r"(?=.{1,200}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+")


@dataclass(frozen=True)
class Settings:
    """What to have. `driver_root` is where the node's driver is: / for one on the host, /run/nvidia/driver for one of
    gpu-operator's. `monitoring`: objects of prometheus-operator too, for numbers and alerts. `ssh_host_keys`: nodes
    sign with the SSH key of their host, and not with one that the agent makes.
    """

    image: str
    gpu_nodes: GpuNodes
    mode: Mode = Mode.OBSERVING
    taints_by: str = WEBHOOK_TAINTS
    domain: str = Names().domain
    level: str = "standard"
    driver_root: str = "/"
    cluster: str = ""
    monitoring: bool = False
    ssh_host_keys: bool = False

    @property
    def names(self) -> Names:
        """Keys below the domain."""
        return Names(self.domain)

    @property
    def enforcing(self) -> bool:
        """Whether new GPU Nodes are tainted."""
        return self.mode is Mode.ENFORCING


def check(settings: Settings) -> None:
    """Raises GpuBurninError for what no cluster would take, or what would be text of another object."""
    if not IMAGE.fullmatch(settings.image):
        raise GpuBurninError(f"--image {settings.image!r} is no reference of an image; give REGISTRY/NAME:TAG")
    if not PATH.fullmatch(settings.driver_root) or ".." in settings.driver_root:
        raise GpuBurninError(f"--driver-root {settings.driver_root!r} is no path; give / or /run/nvidia/driver")
    if not DOMAIN.fullmatch(settings.domain):
        raise GpuBurninError(
            f"--domain {settings.domain!r} is no domain of DNS in lower case; give one such as muster.dev"
        )
    check_level(settings.level)
    if settings.mode is Mode.BUILT:
        raise GpuBurninError("a built fleet is made by site.yml; attach observes or enforces")


def check_level(level: str) -> None:
    """Raises GpuBurninError for one that is none."""
    if level not in LEVEL_NAMES:
        raise GpuBurninError(f"--level {level!r} is none of {', '.join(LEVEL_NAMES)}")
