"""Rules between variables that no argument_spec can state: what a role would find out only on the hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host.binaries import request_problems
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import dcgm
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import network_of, whole
from ansible_collections.muster.fleet.plugins.module_utils.preflight.placeholders import Finding

from gpu_burnin.fleet.feeds.limits import OTHERS, others_mistakes

# A user and a password in a URL, which are nobody's to read.
PASSWORD = re.compile(r"(^|//)[^/@\s]+@")


@dataclass(frozen=True)
class RoleRule:
    """`check` is given the values of `variables` in this order; what it finds is the fault of `blamed`."""

    variables: tuple[str, ...]
    blamed: str
    check: Callable[..., Iterable[Finding]]


def binary_checksums(names: Any, checksums: Any) -> Iterable[Finding]:
    """Every binary has its SHA-256. The argument_specs refuse values of a wrong type."""
    listed = names.split(",") if isinstance(names, str) else names
    usable = isinstance(listed, list) and isinstance(checksums, Mapping)
    return request_problems([str(name) for name in listed], checksums) if usable else ()


def image_checksums(images: Any, checksums: Any) -> Iterable[Finding]:
    """Every archive of an image has its SHA-256."""
    return binary_checksums(list(images.values()), checksums) if isinstance(images, Mapping) else ()


def of_mirror(source: Any, names: Any, checksums: Any) -> Iterable[Finding]:
    """With its source the mirror, every binary has its SHA-256."""
    return binary_checksums(names, checksums) if source == "mirror" else ()


def toolkit_version(source: Any, version: Any) -> Iterable[Finding]:
    """Packages come in the version that was asked for, not in any."""
    if source == "nvidia" and not version:
        yield (
            "nvidia_container_toolkit_version is empty, but nvidia_container_toolkit_source is nvidia",
            "give the exact version, such as 1.20.1",
        )


def image_has_digest(image: Any, loaded: Any) -> Iterable[Finding]:
    """An image is named by its digest, or loaded from an archive with a checksum."""
    if not isinstance(image, str) or not image or (isinstance(loaded, Mapping) and image in loaded):
        return
    if not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", image):
        yield (
            f"nvidia_device_plugin_image {image!r} has no digest: another image may come under the same name",
            "write NAME@sha256:DIGEST, or load it by container_runtime_images",
        )


def mig_has_strategy(image: Any, environment: Any, expect: Any) -> Iterable[Finding]:
    """A plugin without a strategy offers GPUs in MIG mode as whole ones, which no process can open."""
    mig = expect.get("mig") if isinstance(expect, Mapping) else None
    if image and str(mig).lower() in TRUE and _mig_strategy(environment) == "none":
        yield (
            "gpu_burnin_expect says mig: true, but nvidia_device_plugin_environment has no MIG_STRATEGY, so the device "
            "plugin would not offer the instances and no node would be let in",
            "set MIG_STRATEGY to single (as nvidia.com/gpu) or mixed (by profile, as nvidia.com/mig-1g.10gb)",
        )


def known_mig_strategy(environment: Any) -> Iterable[Finding]:
    """The admitter knows under which name each strategy offers instances."""
    strategy = _mig_strategy(environment)
    if strategy not in MIG_STRATEGIES:
        yield (
            f"nvidia_device_plugin_environment has MIG_STRATEGY {strategy!r}, which NVIDIA's plugin does not have",
            f"give one of {', '.join(MIG_STRATEGIES)}",
        )


def _mig_strategy(environment: Any) -> Any:
    return environment.get("MIG_STRATEGY", "none") if isinstance(environment, Mapping) else "none"


def _url(name: str, *schemes: str) -> RoleRule:
    """The variable is a URL of one of these schemes, with a host where the scheme wants one, and without a password.

    URLs stand in arguments of commands, in logs and in files that everybody may read.
    """
    known = " or ".join(f"{scheme}://" for scheme in schemes)

    def check(value: Any) -> Iterable[Finding]:
        if not isinstance(value, str) or not value:
            return
        shown = PASSWORD.sub(r"\1***@", value)
        scheme, separator, rest = value.partition("://")
        if not separator:
            yield f"{name} {shown!r} has no scheme", f"write {schemes[0]}://{shown.lstrip('/')}, or begin with {known}"
        elif scheme.lower() not in schemes:
            yield f"{name} {shown!r} begins with {scheme}://", f"begin with {known}"
        elif any(letter.isspace() for letter in value):
            yield f"{name} {shown!r} has a space in it", "take it out"
        elif "@" in rest.partition("/")[0]:
            yield (
                f"{name} {shown!r} has a user or a password in it, which logs and files that all may read would show",
                "take it out, and let the server know your hosts by their addresses",
            )
        elif scheme.lower() != "file" and not rest.partition("/")[0]:
            yield f"{name} {shown!r} names no host", f"write {scheme}://HOST/PATH"

    return RoleRule((name,), name, check)


def pods_fit(network: Any, pods: Any) -> Iterable[Finding]:
    """The node's range has an address for each of its pods, beside its own, the bridge's and the broadcast's."""
    found, most = network_of(network), whole(pods)
    if found is None or most is None:
        return
    room = found.num_addresses - TAKEN
    if most > room:
        prefix = found.max_prefixlen - (most + TAKEN - 1).bit_length()
        yield (
            f"pod_network_range {network} has room for {max(room, 0)} pods, but kubelet_max_pods is {most}",
            f"give a /{prefix} or wider, or set kubelet_max_pods lower",
        )


def session_password(password: Any) -> Iterable[Finding]:
    """What the kernel takes as a key and bird.conf as text, which the finding does not show."""
    if isinstance(password, str) and not re.fullmatch(r"[!#-~]{0,80}", password):
        yield (
            "pod_network_bgp_password has a quote, a space or a letter that is not ASCII, or more than 80 letters",
            "give 1 to 80 other ones, for instance of `openssl rand -base64 48`",
        )


def driver_version(source: Any, version: Any) -> Iterable[Finding]:
    """Packages are installed in an exact version."""
    if not isinstance(version, str):
        return
    if not version and source in NVIDIA_SOURCES:
        yield (
            f"fleet_nvidia_driver_version is empty, but fleet_nvidia_source is {source}",
            "give the exact version, such as 580.105.08",
        )
    elif version and not re.fullmatch(r"\d+(\.\d+)+", version):
        yield (
            f"fleet_nvidia_driver_version {version!r} is no version of a driver",
            "give the exact version without the packages' revision, such as 580.105.08",
        )


def nvidia_repository(source: Any, *repository: Any) -> Iterable[Finding]:
    """A driver of NVIDIA's needs its repository."""
    return _repository("fleet_nvidia_source is nvidia", repository) if source == "nvidia" else ()


def toolkit_repository(source: Any, driver: Any, *repository: Any) -> Iterable[Finding]:
    """So does the toolkit, wherever the driver comes from."""
    needs = source == "nvidia" != driver  # of a driver that needs it too, its own rule tells
    return _repository("nvidia_container_toolkit_source is nvidia", repository) if needs else ()


def dcgm_repository(driver: Any, version: Any, *repository: Any) -> Iterable[Finding]:
    """And DCGM, which is nowhere else. The image's is the image's."""
    needs = version and driver in ("debian", "ubuntu")
    return _repository(f"nvidia_dcgm_version is {version}", repository) if needs else ()


def dcgm_release(driver: Any, version: Any) -> Iterable[Finding]:
    """Other releases than DCGM 4 have other packages."""
    if version and driver in NVIDIA_SOURCES and not dcgm.is_supported(str(version)):
        yield f"nvidia_dcgm_version {version!r} is no release of DCGM 4", "give one of DCGM 4, such as 4.5.2"


def _repository(needs: str, repository: Iterable[Any]) -> Iterable[Finding]:
    """The repository has its key, and the fingerprint that tells that it is the right key."""
    empty = [name for name, value in zip(REPOSITORY, repository, strict=True) if not value]
    if empty:
        yield f"{needs}, but {', '.join(empty)} {'is' if len(empty) == 1 else 'are'} empty", "set it"


def key_fingerprint(fingerprint: Any) -> Iterable[Finding]:
    """A fingerprint in full: a shorter one is a key's that anybody can make."""
    if (
        isinstance(fingerprint, str)
        and fingerprint
        and not re.fullmatch(r"[0-9A-Fa-f]{40}", fingerprint.replace(" ", ""))
    ):
        yield (
            f"fleet_nvidia_repository_fingerprint {fingerprint!r} is no fingerprint",
            "give the 40 hexadecimal digits that `gpg --show-keys` prints",
        )


REPOSITORY = ("fleet_nvidia_repository_url", "fleet_nvidia_repository_key", "fleet_nvidia_repository_fingerprint")
NVIDIA_SOURCES = ("nvidia", "debian", "ubuntu")
# Addresses of a node's range that no pod gets: the network's, the bridge's, the broadcast's.
TAKEN = 3
MIG_STRATEGIES = ("none", "single", "mixed")
# What Ansible takes for true.
TRUE = ("true", "yes", "on", "y", "t", "1")
MIRROR = ("http", "https", "file")
_DRIVER = "fleet_nvidia_driver_version"
_FINGERPRINT = "fleet_nvidia_repository_fingerprint"
_DCGM = "nvidia_dcgm_version"
_PASSWORD = "pod_network_bgp_password"
_CHECKSUMS = "kube_binaries_checksums"
ROLE_RULES: Mapping[str, tuple[RoleRule, ...]] = {
    "kube_binaries": (
        RoleRule(("kube_binaries_names", _CHECKSUMS), _CHECKSUMS, binary_checksums),
        _url("kube_binaries_url", *MIRROR),
    ),
    "container_runtime": (
        RoleRule(("container_runtime_images", _CHECKSUMS), _CHECKSUMS, image_checksums),
        RoleRule(("container_runtime_source", "__container_runtime_binaries", _CHECKSUMS), _CHECKSUMS, of_mirror),
        _url("container_runtime_images_url", *MIRROR),
        _url("container_runtime_binaries_url", *MIRROR),
    ),
    "nvidia_container_toolkit": (
        RoleRule(
            ("nvidia_container_toolkit_source", "__nvidia_container_toolkit_binaries", _CHECKSUMS),
            _CHECKSUMS,
            of_mirror,
        ),
        RoleRule(
            ("nvidia_container_toolkit_source", "nvidia_container_toolkit_version"),
            "nvidia_container_toolkit_version",
            toolkit_version,
        ),
        RoleRule(
            ("nvidia_container_toolkit_source", "fleet_nvidia_source", *REPOSITORY),
            "nvidia_container_toolkit_source",
            toolkit_repository,
        ),
        _url("nvidia_container_toolkit_url", *MIRROR),
    ),
    "nvidia_dcgm": (
        RoleRule(("fleet_nvidia_source", _DCGM), _DCGM, dcgm_release),
        RoleRule(("fleet_nvidia_source", _DCGM, *REPOSITORY), _DCGM, dcgm_repository),
    ),
    "nvidia_device_plugin": (
        RoleRule(
            ("nvidia_device_plugin_image", "__nvidia_device_plugin_loaded"),
            "nvidia_device_plugin_image",
            image_has_digest,
        ),
        RoleRule(
            ("nvidia_device_plugin_image", "nvidia_device_plugin_environment", "gpu_burnin_expect"),
            "nvidia_device_plugin_environment",
            mig_has_strategy,
        ),
        RoleRule(("nvidia_device_plugin_environment",), "nvidia_device_plugin_environment", known_mig_strategy),
    ),
    "fleet": (
        RoleRule(("fleet_nvidia_source", _DRIVER), _DRIVER, driver_version),
        RoleRule(("fleet_nvidia_source", *REPOSITORY), "fleet_nvidia_source", nvidia_repository),
        RoleRule((_FINGERPRINT,), _FINGERPRINT, key_fingerprint),
        _url("fleet_nvidia_repository_url", *MIRROR),
        _url("fleet_wheelhouse_url", *MIRROR),
    ),
    "pod_network": (RoleRule((_PASSWORD,), _PASSWORD, session_password),),
    "cluster_dns": (_url("cluster_dns_server", "https"),),
    "gpu_burnin": (_url("gpu_burnin_api_url", "https"), RoleRule((OTHERS,), OTHERS, others_mistakes)),
    "kube_controller_manager": (_url("kube_controller_manager_server", "https"),),
    "kube_proxy": (_url("kube_proxy_api_url", "https"),),
    "kube_scheduler": (_url("kube_scheduler_server", "https"),),
    "kubelet": (
        _url("kubelet_api_url", "https"),
        RoleRule(("pod_network_range", "kubelet_max_pods"), "pod_network_range", pods_fit),
    ),
}
