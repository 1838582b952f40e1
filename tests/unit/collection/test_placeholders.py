"""What stands in the place of a site's own values is found, and values of a site are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.preflight.placeholders import placeholders
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_specs import option_findings

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("kube_binaries_checksums", {"etcd": "0" * 64, "coredns": DIGEST}, "a checksum of one repeated digit: etcd"),
        (
            "kube_binaries_checksums",
            dict.fromkeys("abcde", "f" * 64),
            "a checksum of one repeated digit: a, b, c and 2 more",
        ),
        ("kubelet_binary_sha256", "A" * 64, "a checksum of one repeated digit"),
        ("fleet_host_key_fingerprint", f"SHA256:{'A' * 43}", "a fingerprint of one letter"),
        ("kube_binaries_url", "http://mirror.example.com/muster", "a name reserved for examples"),
        ("kube_binaries_url", "mirror.example.com/muster", "a name reserved for examples"),
        ("kube_binaries_url", "https://user@mirror.example.org:8443/muster", "a name reserved for examples"),
        ("kube_binaries_url", "http://mirror.invalid/", "a name reserved for examples"),
        ("fleet_wheelhouse_url", "http://mirror.example.com/muster", "a name reserved for examples"),
        ("container_runtime_sandbox_image", "registry.example/pause:3.10", "a name reserved for examples"),
        ("fleet_domain", "gpu.Example.COM", "a name reserved for examples"),
        ("ansible_host", "192.0.2.1", "an address reserved for documentation"),
        ("fleet_api_address", "198.51.100.41", "an address reserved for documentation"),
        ("fleet_api_address", "2001:db8::41", "an address reserved for documentation"),
        ("kubelet_api_url", "https://[2001:db8::41]:6443", "an address reserved for documentation"),
        ("kubelet_api_url", "https://203.0.113.4:6443/x", "an address reserved for documentation"),
        (
            "time_sync_servers",
            ["10.0.0.1", "198.51.100.2"],
            "an address reserved for documentation (RFC 5737): 198.51.100.2",
        ),
        ("local_ssd_device", "/dev/disk/by-id/nvme-EXAMPLE_SSD_1TB_S1", "the example's placeholder"),
        ("fleet_name", "example", "the example's placeholder"),
    ],
)
def test_a_placeholder_is_found(name: str, value: Any, expected: str) -> None:
    ((message, fix),) = placeholders(name, value)
    assert message.startswith(f"{name} still has ")
    assert expected in message
    assert fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kube_binaries_checksums", {"etcd": DIGEST}),
        ("fleet_host_key_fingerprint", "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDHILqNqYwDRYVPZ5o"),
        ("kube_binaries_url", "http://mirror.site.internal/muster"),
        ("kube_binaries_url", "file:///srv/example.com/muster"),
        ("kube_binaries_url", "http://notexample.com/"),
        ("kube_binaries_url", "http://example.company.net/"),
        ("cluster_dns_upstreams", ["/etc/resolv.example", "10.0.0.53"]),
        ("gpu_burnin_level", "example"),
        ("fleet_name", "example-west"),
        ("fleet_pod_cidr", "198.18.0.0/16"),
        ("fleet_api_address", "198.18.7.41"),
        ("local_ssd_device", "/dev/disk/by-id/nvme-COUNTEREXAMPLES"),
        ("fleet_planned_nodes", 200),
        ("gpu_burnin_expect", {"gpus": 8, "mig": None}),
    ],
)
def test_a_site_s_own_value_is_left_alone(name: str, value: Any) -> None:
    assert placeholders(name, value) == []


def test_a_default_is_made_of_other_variables_which_are_told_themselves() -> None:
    value = "https://198.51.100.41:6443"
    assert option_findings("kubelet", "kubelet_api_url", {"type": "str"}, value, is_default=True) == []
    assert len(option_findings("kubelet", "kubelet_api_url", {"type": "str"}, value, is_default=False)) == 1
