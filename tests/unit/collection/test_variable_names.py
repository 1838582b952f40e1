"""Slips of known names are found, and a site's own names are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_specs import known_names, load_role_specs
from ansible_collections.muster.fleet.plugins.module_utils.preflight.variable_names import KnownNames, slips

ROLES = Path(__file__).resolve().parents[3] / "collections/ansible_collections/muster/fleet/roles"
ANSIBLE = ("ansible_host", "ansible_port", "ansible_user", "ansible_become", "ansible_ssh_common_args")


@pytest.fixture(scope="module")
def names() -> KnownNames:
    """All that the roles of this collection know."""
    return known_names(load_role_specs([ROLES]), ANSIBLE)


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        # A letter missing, too many, wrong, swapped.
        ("kubelt_max_pods", "kubelet_max_pods"),
        ("kube_binares_url", "kube_binaries_url"),
        ("kube_controler_manager_pki_dir", "kube_controller_manager_pki_dir"),
        ("fleets_name", "fleet_name"),
        ("fleat_name", "fleet_name"),
        ("ectd_data_dir", "etcd_data_dir"),
        ("etc_data_dir", "etcd_data_dir"),
        ("local_sdd_device", "local_ssd_device"),
        ("gpi_burnin_level", "gpu_burnin_level"),
        ("pik_dir", "pki_dir"),
        ("ansible_hots", "ansible_host"),
        ("ansble_user", "ansible_user"),
        # Two slips.
        ("kublet_max_pod", "kubelet_max_pods"),
        ("kublet_mx_pods", "kubelet_max_pods"),
        # Words run together, split, or joined by something else.
        ("gpuburnin_level", "gpu_burnin_level"),
        ("gpu_burn_in_level", "gpu_burnin_level"),
        ("gpuburnin_leve", "gpu_burnin_level"),
        ("timesync_servers", "time_sync_servers"),
        ("kube_let_max_pods", "kubelet_max_pods"),
        ("gpu-burnin-level", "gpu_burnin_level"),
        ("gpuBurninLevel", "gpu_burnin_level"),
        ("FLEET_NAME", "fleet_name"),
    ],
)
def test_a_slip_is_found(names: KnownNames, slip: str, meant: str) -> None:
    assert names.meant_by(slip) == meant


@pytest.mark.parametrize(
    "own",
    [
        "rack", "row", "zone", "site_kube_version", "kube_version", "kubernetes_version", "cluster_name", "node_name",
        "pod_cidr", "service_cidr", "dns_domain", "kube_api_url", "mirror_url", "binaries_url", "apiserver_address",
        "gpu_count", "gpu_model", "gpu_level", "lab_subnet", "bmc_address", "os_packages",
        # One letter or one word away, and another thing.
        "cpu_burnin_level", "dpu_burnin_level", "local_ssh_device", "local_hdd_device", "node_network_mtu",
        "node_network_range", "api_dir", "pkg_dir", "app_dir", "fleet2_name", "kubectl_max_pods",
        "ansible_facts", "ansible_fqdn", "inventory_hostname",
    ],
)  # fmt: skip
def test_a_site_s_own_name_is_left_alone(names: KnownNames, own: str) -> None:
    assert names.meant_by(own) == ""


@pytest.mark.slow
def test_no_known_name_is_a_slip_of_another() -> None:
    """What separates slips from names separates the names themselves, or the rule is too wide."""
    options = [name for spec in load_role_specs([ROLES]).values() for name in spec.options]
    assert len(options) > 150
    for name in options:
        assert KnownNames(set(options) - {name}).meant_by(name) == "", name


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("abcd", "abcd", 0),
        ("abcd", "abd", 1),
        ("abcd", "acbd", 1),
        ("abcd", "abxd", 1),
        ("abcd", "badc", 2),
        ("a", "abcd", 3),
    ],
)
def test_slips(one: str, other: str, expected: int) -> None:
    assert slips(one, other, 2) == expected
    assert slips(other, one, 2) == expected


def test_a_wrong_letter_is_two_slips_where_it_may_not_be_replaced() -> None:
    assert slips("gpu", "cpu", 2, may_replace=False) == 2
    assert slips("gpu", "gup", 2, may_replace=False) == 1
