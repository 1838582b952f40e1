"""What `muster roll` reads of an inventory. The action itself runs in tests/unit/fleet/waves/test_roll_kills.py.

Only here: it runs once with a group of workers and power waves, on an inventory of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail, AnsibleParserError
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible_collections.muster.fleet.plugins.action import roll_given
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED
from ansible_collections.muster.fleet.plugins.plugin_utils import roll_reader

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import frozen, places
from gpu_burnin.fleet.waves.grants import Power
from gpu_burnin.fleet.waves.model import Order
from tests.lab.paths import REPOSITORY


def inventory(group: dict[str, Any], host: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(groups={"all": SimpleNamespace(vars=group)}, hosts={"gpu-1": SimpleNamespace(vars=host)})


@pytest.mark.parametrize(
    ("group", "host", "jumps"),
    [
        ({}, {}, False),
        ({"ansible_ssh_common_args": "-o UserKnownHostsFile=/known"}, {}, False),
        ({"ansible_ssh_common_args": "-o ProxyJump=bastion"}, {}, True),
        ({}, {"ansible_ssh_extra_args": "-J bastion"}, True),
        ({}, {"ansible_ssh_args": "-C -Jbastion"}, True),
        ({}, {"ansible_ssh_common_args": '-o ProxyCommand="ssh -W %h:%p bastion"'}, True),
    ],
)
def test_a_jump_host_is_seen(group: dict[str, Any], host: dict[str, Any], jumps: bool) -> None:
    assert roll_given._jumps(inventory(group, host)) is jumps


@pytest.mark.parametrize(
    ("expect", "model"), [({"model": "b200", "gpus": 8}, "b200"), ({"gpus": 8}, ""), (None, ""), ("{{ broken }}", "")]
)
def test_a_node_without_a_model_has_none(expect: object, model: str) -> None:
    assert roll_given._model(expect) == model


def reading(values: Mapping[str, Mapping[str, Any]], **groups: list[str]) -> tuple[Any, Any]:
    """A reader of these variables by host, and what it read."""
    reader = SimpleNamespace(
        host_values=lambda scopes, names, hosts: {name: values.get(name, {}) for name in names},
        file=lambda path: {
            "gpu_burnin_power_waves": "granted", "gpu_burnin_wave_max_nodes": 1, "gpu_burnin_extended_s": 7200,
        },
    )  # fmt: skip
    return reader, SimpleNamespace(scopes=(), homes={}, inventory=SimpleNamespace(groups=groups, fleet={}, places={}))


def test_workers_of_a_group_are_named_as_options_name_them() -> None:
    values: dict[str, dict[str, Any]] = {
        "ansible_host": {"w-1": "10.0.0.9"}, "ansible_user": {"w-1": "roll"}, "ansible_port": {"w-1": 2222, "w-2": 22},
        "muster_roll_shards": {"w-1": 8, "w-3": 0},
    }  # fmt: skip
    found = roll_reader.workers_of(*reading(values, burners=["w-1", "w-2", "w-3"]), "burners", ["gpu-1"])
    assert found == ["roll@10.0.0.9:2222=8", "w-2:22", "w-3=0"]
    with pytest.raises(GpuBurninError, match="'w-3=0' is no worker"):
        places.parse(found[-1], "", Path("known_hosts"))


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ("others", "the inventory has no hosts in a group others; name the group of its workers"),
        ("empty", "the inventory has no hosts in a group empty; name the group of its workers"),
        ("mixed", "gpu-1 is a node of the fleet and in the group mixed; take it out"),
        ("broken", "ansible_host of w-9 cannot be resolved, and workers need it; correct it"),
    ],
)
def test_a_group_that_is_none_of_workers_is_refused(group: str, says: str) -> None:
    given = reading({"ansible_host": {"w-9": UNRESOLVED}}, empty=[], mixed=["w-1", "gpu-1"], broken=["w-9"])
    with pytest.raises(AnsibleActionFail, match=says):
        roll_reader.workers_of(*given, group, ["gpu-1"])


@pytest.mark.parametrize("value", ["abc", "", None, 0, float("nan")])
@pytest.mark.parametrize("variable", ["gpu_burnin_extended_s", "gpu_burnin_wave_max_nodes"])
def test_what_is_no_number_is_refused_with_its_node(variable: str, value: object) -> None:
    given = reading({variable: {"gpu-1": value}}, gpu_nodes=["gpu-1"])
    with pytest.raises(AnsibleActionFail, match=f"{variable} of gpu-1 is .*; give a number above 0"):
        roll_reader.power_of(*given, ["gpu-1"])


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """An inventory's folder with a link to a common one, which has a link back, and a folder below."""
    folder, common = tmp_path / "prod", tmp_path / "common/all"
    for made in (folder / "group_vars", folder / "racks/.git", common):
        made.mkdir(parents=True)
    (folder / "group_vars/all").symlink_to("../../common/all")
    (common / "back").symlink_to(folder)
    for path, name in ((common / "one.yml", "linked"), (folder / "racks/hosts.yml", "below")):
        path.write_text(f"$ANSIBLE_VAULT;1.1;AES256\n{name}")
    (folder / "racks/.git/object").write_text("$ANSIBLE_VAULT;1.1;AES256\nno")
    (folder / "hosts.yml").touch()
    return folder


class Loader:
    """Decrypts to a variable named as what stands below the first line; `no` has another password."""

    def load_from_file(self, path: str) -> object:
        name = Path(path).read_text(encoding="utf-8").splitlines()[1]
        if name == "no":
            raise AnsibleParserError("hunter2")
        return f"host {name}=1" if name == "ini" else {name: 1}


def test_encrypted_files_are_found_where_ansible_reads_them(sealed: Path) -> None:
    """It enters links to folders, and all folders of an inventory: such files reached workers decrypted."""
    assert roll_reader.sealed_in([str(sealed)], Loader()) == ["below", "linked"]
    (sealed.parent / "common/all/back").unlink()
    assert roll_reader.sealed_in([str(sealed / "hosts.yml")], Loader()) == ["linked"]


@pytest.mark.parametrize("content", ["no", "ini"])
def test_an_encrypted_file_without_names_refuses_the_roll(sealed: Path, content: str) -> None:
    (sealed / "hosts").write_text(f"$ANSIBLE_VAULT;1.1;AES256\n{content}")
    with pytest.raises(AnsibleActionFail, match="prod/hosts is encrypted as a whole") as refused:
        roll_reader.sealed_in([str(sealed)], Loader())
    assert "hunter2" not in str(refused.value)


def test_workers_and_power_are_read_of_an_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", str(REPOSITORY / "ansible.cfg"))
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", str(REPOSITORY / "collections"))
    nodes = {
        "gpu-1": {"fleet_place": {"feed": "a"}},
        "gpu-2": {"gpu_burnin_power_waves": "never"},
    }
    shared = {"fleet_state_dir": str(tmp_path), "fleet_feed_limits": {"a": 2}}
    children = {"gpu_nodes": {"hosts": nodes}, "burners": {"hosts": {"w-1": {"ansible_host": "10.0.0.{{ 9 }}"}}}}
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(yaml.safe_dump({"all": {"vars": shared, "children": children}}))
    password = tmp_path / "password"
    password.write_text("correct-horse")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))
    secrets = tmp_path / "group_vars/all/secrets.yml"
    secrets.parent.mkdir(parents=True)
    vault = VaultLib([("default", VaultSecret(b"correct-horse"))])
    secrets.write_bytes(vault.encrypt("gpu_burnin_api_url: https://user:word@api\nkey: {id: 1}\n"))
    (secrets.parent / "plain.yml").write_text("fleet_name: one\n")
    found = frozen.given(Order("burnin.yml", (str(hosts),)), ("gpu_nodes",), workers="burners", power=True)
    assert found.sealed == ("gpu_burnin_api_url", "id", "key")
    assert found.workers == ("10.0.0.9",) and [node.name for node in found.nodes] == ["gpu-1", "gpu-2"]
    assert found.power == Power(
        {"a": 2}, 1, 7200.0, feeds={"gpu-1": "a", "gpu-2": ""}, modes={"gpu-1": "granted", "gpu-2": "never"},
    )  # fmt: skip
