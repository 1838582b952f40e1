"""Rules of a role that no argument_spec can state."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_rules import ROLE_RULES, Finding


def findings(role: str, **values: Any) -> list[Finding]:
    """What the role's rules of exactly these variables find."""
    rules = [rule for rule in ROLE_RULES[role] if set(rule.variables) == set(values)]
    assert rules
    return [finding for rule in rules for finding in rule.check(*(values[name] for name in rule.variables))]


@pytest.mark.parametrize(
    ("value", "message", "fix"),
    [
        ("mirror.local/kube", "'mirror.local/kube' has no scheme", "write http://mirror.local/kube, or begin with"),
        ("mirror.local:8080/kube", "has no scheme", "write http://mirror.local:8080/kube"),
        ("//mirror.local/kube", "has no scheme", "write http://mirror.local/kube"),
        ("/srv/mirror", "has no scheme", "file://"),
        ("ftp://mirror.local", "begins with ftp://", "begin with http:// or https:// or file://"),
        ("http:///kube", "names no host", "write http://HOST/PATH"),
        ("http://mirror local/kube", "has a space", "take it out"),
    ],
)
@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("kube_binaries", "kube_binaries_url"),
        ("container_runtime", "container_runtime_images_url"),
        ("fleet", "fleet_wheelhouse_url"),
    ],
)
def test_a_mirror_that_is_no_url(role: str, name: str, value: str, message: str, fix: str) -> None:
    ((found, what),) = findings(role, **{name: value})
    assert found.startswith(name) and message in found
    assert fix in what


@pytest.mark.parametrize(
    "value",
    [
        "user:hunter2@mirror.local/kube",
        "ftp://user:hunter2@mirror.local",
        "http://user:hunter2@a b",
        "https://user:hunter2@mirror.local/kube",
    ],
)
def test_a_password_in_a_url_is_not_repeated(value: str) -> None:
    ((message, fix),) = findings("kube_binaries", kube_binaries_url=value)
    assert "***@" in message
    assert "hunter2" not in message + fix


def test_no_url_has_a_password_in_it() -> None:
    ((message, fix),) = findings("fleet", fleet_nvidia_repository_url="https://user:hunter2@mirror.local/debian12")
    assert message.startswith(
        "fleet_nvidia_repository_url 'https://***@mirror.local/debian12' has a user or a password"
    )
    assert fix == "take it out, and let the server know your hosts by their addresses"
    assert findings("kube_binaries", kube_binaries_url="https://mirror.local/kube@1.36") == []


@pytest.mark.parametrize("value", ["http://mirror.local", "https://10.0.0.1:8443/kube", "file:///srv/kube", "", None])
def test_a_mirror(value: object) -> None:
    assert findings("kube_binaries", kube_binaries_url=value) == []


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("cluster_dns", "cluster_dns_server"), ("gpu_burnin", "gpu_burnin_api_url"), ("kubelet", "kubelet_api_url"),
        ("kube_proxy", "kube_proxy_api_url"), ("kube_scheduler", "kube_scheduler_server"),
        ("kube_controller_manager", "kube_controller_manager_server"),
    ],
)  # fmt: skip
def test_every_url_of_the_api_is_https(role: str, name: str) -> None:
    assert findings(role, **{name: "https://[2001:db8::41]:6443"}) == []
    assert findings(role, **{name: "http://api:6443"})[0][0] == f"{name} 'http://api:6443' begins with http://"
    assert findings(role, **{name: "10.0.0.1:6443"})[0][1] == "write https://10.0.0.1:6443, or begin with https://"


@pytest.mark.parametrize(
    ("network", "pods"),
    [("10.64.1.0/24", 110), ("10.64.1.0/25", 110), ("10.64.1.0/24", 253), ("nonsense", 110), ("10.64.1.0/24", "many")],
)
def test_a_range_that_holds_the_node_s_pods(network: str, pods: object) -> None:
    assert findings("kubelet", pod_network_range=network, kubelet_max_pods=pods) == []


@pytest.mark.parametrize(
    ("network", "pods", "room", "wanted"), [("10.64.1.0/26", 110, 61, 25), ("10.64.1.0/24", 254, 253, 23)]
)
def test_a_range_that_is_too_small_for_the_node_s_pods(network: str, pods: int, room: int, wanted: int) -> None:
    ((message, fix),) = findings("kubelet", pod_network_range=network, kubelet_max_pods=pods)
    assert message == f"pod_network_range {network} has room for {room} pods, but kubelet_max_pods is {pods}"
    assert fix == f"give a /{wanted} or wider, or set kubelet_max_pods lower"


@pytest.mark.parametrize(
    ("source", "version", "expected"),
    [
        ("image", "", None),
        ("image", "580.105.08", None),
        ("nvidia", "580.105.08", None),
        ("nvidia", "", "fleet_nvidia_driver_version is empty, but fleet_nvidia_source is nvidia"),
        ("debian", "580", "'580' is no version of a driver"),
        ("ubuntu", "580.105.08-1", "'580.105.08-1' is no version of a driver"),
    ],
)
def test_driver_version(source: str, version: str, expected: str | None) -> None:
    found = findings("fleet", fleet_nvidia_source=source, fleet_nvidia_driver_version=version)
    assert [message for message, _ in found if expected and expected in message] == [m for m, _ in found]
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("source", "url", "key", "fingerprint", "expected"),
    [
        ("image", "", "", "", None),
        ("nvidia", "https://mirror/debian12", "KEY", "EB69 3B30 35CD 5710 E231  E123 A4B4 6996 3BF8 63CC", None),
        ("nvidia", "https://mirror/debian12", "KEY", "", "fleet_nvidia_repository_fingerprint is empty"),
        ("nvidia", "", "", "a" * 40, "fleet_nvidia_repository_url, fleet_nvidia_repository_key are empty"),
    ],
)
def test_nvidia_repository(source: str, url: str, key: str, fingerprint: str, expected: str | None) -> None:
    found = findings(
        "fleet",
        fleet_nvidia_source=source,
        fleet_nvidia_repository_url=url,
        fleet_nvidia_repository_key=key,
        fleet_nvidia_repository_fingerprint=fingerprint,
    )
    assert len(found) == bool(expected)
    assert all(expected in message for message, _ in found if expected)


@pytest.mark.parametrize(
    ("fingerprint", "refused"),
    [("", False), (None, False), ("a" * 40, False), ("3BF863CC", True), ("EB69 3B30", True)],
)
def test_a_fingerprint_is_whole(fingerprint: str | None, refused: bool) -> None:
    found = findings("fleet", fleet_nvidia_repository_fingerprint=fingerprint)
    assert len(found) == refused
    assert all(f"{fingerprint!r} is no fingerprint" in message for message, _ in found)


REPOSITORY = {
    "fleet_nvidia_repository_url": "https://mirror/debian12",
    "fleet_nvidia_repository_key": "KEY",
    "fleet_nvidia_repository_fingerprint": "a" * 40,
}


@pytest.mark.parametrize(
    ("driver", "version", "refused"),
    [
        ("nvidia", "4.5.2", False),
        ("nvidia", "3.3.9", True),
        ("debian", "3.3.9", True),
        ("ubuntu", "45.2", True),
        ("nvidia", "", False),
        # With an image nothing is installed.
        ("image", "3.3.9", False),
    ],
)
def test_dcgm_is_of_release_4(driver: str, version: str, refused: bool) -> None:
    found = findings("nvidia_dcgm", fleet_nvidia_source=driver, nvidia_dcgm_version=version)
    assert len(found) == refused
    assert all(message == f"nvidia_dcgm_version {version!r} is no release of DCGM 4" for message, _ in found)


@pytest.mark.parametrize("missing", [None, *REPOSITORY])
@pytest.mark.parametrize(
    ("driver", "version", "needs"),
    [
        ("debian", "4.5.2", True),
        ("ubuntu", "4.5.2", True),
        ("ubuntu", "", False),
        ("image", "4.5.2", False),
        # The rule of the driver tells it.
        ("nvidia", "4.5.2", False),
    ],
)
def test_dcgm_needs_the_repository(driver: str, version: str, needs: bool, missing: str | None) -> None:
    repository = {name: "" if name == missing else value for name, value in REPOSITORY.items()}
    found = findings("nvidia_dcgm", fleet_nvidia_source=driver, nvidia_dcgm_version=version, **repository)
    expected = [f"nvidia_dcgm_version is 4.5.2, but {missing} is empty"] if needs and missing else []
    assert [message for message, _ in found] == expected


@pytest.mark.parametrize("missing", [None, *REPOSITORY])
@pytest.mark.parametrize(
    ("source", "driver", "needs"),
    [
        ("nvidia", "debian", True),
        ("nvidia", "ubuntu", True),
        ("nvidia", "image", True),
        ("nvidia", "nvidia", False),
        ("mirror", "debian", False),
        ("image", "ubuntu", False),
    ],
)
def test_packages_of_the_toolkit_need_the_repository(
    source: str, driver: str, needs: bool, missing: str | None
) -> None:
    repository = {name: "" if name == missing else value for name, value in REPOSITORY.items()}
    given = {"nvidia_container_toolkit_source": source, "fleet_nvidia_source": driver}
    found = findings("nvidia_container_toolkit", **given, **repository)
    expected = [f"nvidia_container_toolkit_source is nvidia, but {missing} is empty"] if needs and missing else []
    assert [message for message, _ in found] == expected


DIGEST = f"registry.example.com/plugin@sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("image", "refused"),
    [(DIGEST, False), ("", False), (None, False), ("lab/plugin:1", False), ("nvcr.io/nvidia/plugin:v0.17.4", True),
     (DIGEST[:-1], True), (f"lab/plugin:1@{DIGEST}", True)],
)  # fmt: skip
def test_the_device_plugin_is_named_by_digest_or_loaded_by_checksum(image: str | None, refused: bool) -> None:
    loaded = {"lab/plugin:1": "plugin.tar"}
    found = findings("nvidia_device_plugin", nvidia_device_plugin_image=image, __nvidia_device_plugin_loaded=loaded)
    assert bool(found) == refused and all("has no digest" in message for message, _ in found)


@pytest.mark.parametrize(
    ("image", "mig", "environment", "refused"),
    [
        (DIGEST, True, {}, True),
        (DIGEST, "yes", {"MIG_STRATEGY": "none"}, True),
        (DIGEST, True, {"MIG_STRATEGY": "single"}, False),
        (DIGEST, True, {"MIG_STRATEGY": "mixed"}, False),
        (DIGEST, False, {}, False),
        (DIGEST, None, {}, False),
        (DIGEST, False, {"MIG_STRATEGY": "mixed"}, False),
        ("", True, {}, False),
    ],
)
def test_a_device_plugin_of_nodes_in_mig_mode_has_a_strategy(
    image: str, mig: object, environment: dict[str, str], refused: bool
) -> None:
    found = findings(
        "nvidia_device_plugin",
        nvidia_device_plugin_image=image,
        nvidia_device_plugin_environment=environment,
        gpu_burnin_expect={"gpus": 8, "mig": mig},
    )
    assert len(found) == refused
    assert all("says mig: true, but nvidia_device_plugin_environment has no MIG_STRATEGY" in said for said, _ in found)


@pytest.mark.parametrize(("strategy", "refused"), [("mixed", False), ("single", False), ("none", False), ("all", True)])
def test_the_strategy_is_one_that_the_plugin_has(strategy: str, refused: bool) -> None:
    found = findings("nvidia_device_plugin", nvidia_device_plugin_environment={"MIG_STRATEGY": strategy})
    assert len(found) == refused and all(f"MIG_STRATEGY {strategy!r}" in message for message, _ in found)
    assert findings("nvidia_device_plugin", nvidia_device_plugin_environment={"A": "b"}) == []


@pytest.mark.parametrize("role", ["container_runtime", "nvidia_container_toolkit"])
def test_binaries_of_the_mirror_need_checksums_and_no_others_do(role: str) -> None:
    given = {f"__{role}_binaries": ["tool"], "kube_binaries_checksums": {}}
    ((message, _),) = findings(role, **{f"{role}_source": "mirror"}, **given)
    assert "no entry for tool" in message
    assert findings(role, **{f"{role}_source": "image"}, **given) == []


@pytest.mark.parametrize(
    ("source", "version", "refused"), [("nvidia", "", True), ("nvidia", "1.20.1", False), ("image", "", False)]
)
def test_packages_of_the_toolkit_need_a_version(source: str, version: str, refused: bool) -> None:
    given = {"nvidia_container_toolkit_source": source, "nvidia_container_toolkit_version": version}
    assert bool(findings("nvidia_container_toolkit", **given)) == refused
