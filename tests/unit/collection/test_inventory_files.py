"""Files of variables that cannot be read: each is one sentence with file, line and what to do.

Only here: that the callback ends a run of Ansible before its first play, with Ansible's own exit status.
"""

from __future__ import annotations

import configparser
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultLib, VaultSecret, VaultSecretsContext
from ansible_collections.muster.fleet.plugins.callback.inventory_files import limit_warning
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import files_of, locked, missing, unreadable

from tests.support.playbook_fixtures import PlaybookIn, warm_playbook

Playbook = Callable[..., subprocess.CompletedProcess[str]]
RIGHT, WRONG = VaultSecret(b"right"), VaultSecret(b"wrong")

Find = Callable[..., list[Problem]]


@pytest.fixture(scope="module")
def playbook_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaybookIn]:
    """With the callback."""
    with warm_playbook(
        tmp_path_factory.mktemp("ansible"), ANSIBLE_CALLBACKS_ENABLED="muster.fleet.inventory_files"
    ) as made:
        yield made


def lines(folder: Path, *secrets: VaultSecret, find: Find = unreadable) -> list[str]:
    """The problems of an inventory, as they are told."""
    loader = DataLoader()
    known = [("default", secret) for secret in secrets]
    loader.set_vault_secrets(known)
    with mock.patch.object(VaultSecretsContext, "_current", VaultSecretsContext(known)):
        return [problem.line().replace(f"{folder}/", "") for problem in find([str(folder)], str(folder), loader)]


def encrypted(text: str) -> str:
    """The text as Ansible Vault encrypts it."""
    return VaultLib([("default", RIGHT)]).encrypt(text, RIGHT).decode()


def value(name: str) -> str:
    """A variable with an encrypted value."""
    return f"{name}: !vault |\n" + "".join(f"  {line}\n" for line in encrypted("hunter2").splitlines())


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("a: 1\nb:\n\tc: 1\n", 3, "this line has a tab in it; indent with spaces"),
        ("a: 1\n  b: 2\n", 2, "this line is indented deeper than the lines it belongs to; align it with them"),
        ("a:\n  - x\n - y\n", 3, "this line is not indented as the lines it belongs to; align it with them"),
        ("a: {{ b }}\n", 1, 'this line has a value that begins with {{ without quotes; write NAME: "{{ ... }}"'),
        ("a: {{ b }}/c\n", 1, 'this line has a value that begins with {{ without quotes; write NAME: "{{ ... }}"'),
        ("a: b: c\n", 1, "this line has a second colon in a value without quotes; put the value into quotes"),
        ('a: "x" y\n', 1, "this line has text behind a value's closing quote, or lacks that quote; put the"),
        ('a: "x\nb: 1\n', 3, "this line is the end of the file, and a quote or bracket above is not closed; close it"),
        ("a: {x: 1\nb: 2\n", 2, "this line comes inside of a bracket that is not closed, or lacks a comma; close it"),
        ("a: 1\nhello\nb: 2\n", 3, "this line or the one above has no colon after its name; write NAME: VALUE"),
        ("a: @x\n", 1, "this line has a value that begins with a sign that YAML keeps to itself; put it into quotes"),
        ("a: *x\n", 1, "this line has a value that begins with * without quotes; put it into quotes"),
        ("a: !x y\n", 1, "this line has a value that begins with ! and is neither !vault nor !unsafe; put it"),
        ("a: 1\n---\nb: 2\n", 2, "this line begins a second document; take the line of --- away"),
        ('a: "\x07"\n', None, "the file has characters that are no text; write it in UTF-8"),
        ("- a\n", None, "the file holds no variables; write each as NAME: VALUE"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["group_vars/all.yml", "host_vars/gpu-1/site.yml", "group_vars/gpu_nodes"])
def test_a_file_that_is_not_yaml(tmp_path: Path, name: str, text: str, line: int | None, expected: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    (found,) = lines(tmp_path)
    assert found.startswith(f"{name}:{line}: {expected}" if line else f"{name}: {expected}")


def test_every_bad_file_is_told_and_good_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "hosts.yml").write_text("all:\n\thosts:\n")
    (tmp_path / "SHA256SUMS.txt").write_text("\t: {{\n")
    (tmp_path / "group_vars/.all.yml.swp").write_text("\t")
    (tmp_path / "group_vars/empty.yml").write_text("---\n")
    (tmp_path / "group_vars/all.yml").write_text("a: '{{ b }}'\n")
    (tmp_path / "group_vars/etcd.yml").write_text("a: {{ b }}\n")
    assert [line.split(": ")[0] for line in lines(tmp_path)] == ["hosts.yml:2", "group_vars/etcd.yml:1"]
    assert unreadable(["gpu-1,gpu-2", str(tmp_path / "absent")], str(tmp_path / "plays"), DataLoader()) == []


def test_the_files_of_groups(tmp_path: Path) -> None:
    for name in ("all.yml", "etcd/one.yml", "gpu_node.yaml", "notes.md", ".hidden.yml"):
        (tmp_path / "group_vars" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "group_vars" / name).write_text("a: 1\n")
    (tmp_path / "hosts.yml").write_text("all: {}\n")
    found = files_of("group_vars", [str(tmp_path / "hosts.yml"), "gpu-1,"], str(tmp_path / "plays"))
    names = {"all.yml": "all", "etcd": "etcd", "gpu_node.yaml": "gpu_node"}
    assert found == {str(tmp_path / "group_vars" / name): group for name, group in names.items()}
    (tmp_path / "group_vars").rename(tmp_path / "host_vars")
    assert list(files_of("host_vars", [str(tmp_path)], str(tmp_path)).values()) == list(names.values())


@pytest.mark.parametrize(
    ("secrets", "expected"),
    [
        ((), "no password was given; add --ask-vault-pass, or --vault-password-file FILE"),
        (
            (WRONG,),
            "no password that was given opens it; give the right one: --ask-vault-pass, or --vault-password-file",
        ),
        ((RIGHT,), ""),
        ((WRONG, RIGHT), ""),
    ],
)
def test_a_vault_s_password(tmp_path: Path, secrets: tuple[VaultSecret, ...], expected: str) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text("a: 1\n" + value("bmc_password") + value("other_password"))
    (tmp_path / "group_vars/etcd.yml").write_text(encrypted("b: 2"))
    found = lines(tmp_path, *secrets, find=locked)
    # No run needs every group.
    assert lines(tmp_path, *secrets) == []
    assert "hunter2" not in str(found)
    if not expected:
        assert found == []
        return
    # The password of one value is that of all: it is told once.
    one, file = found
    assert file.startswith(f"group_vars/etcd.yml: the file is encrypted with Ansible Vault, and {expected}")
    assert one.startswith(f"group_vars/all.yml:2: bmc_password is encrypted with Ansible Vault, and {expected}")


def test_a_file_of_all_groups_that_no_password_opens(tmp_path: Path) -> None:
    (tmp_path / "group_vars/all").mkdir(parents=True)
    (tmp_path / "group_vars/all/secrets.yml").write_text(encrypted("b: 2"))
    assert lines(tmp_path) == lines(tmp_path, find=locked)
    assert lines(tmp_path)[0].startswith("group_vars/all/secrets.yml: the file is encrypted with Ansible Vault, and no")
    assert lines(tmp_path, RIGHT) == []


def test_a_secret_of_other_playbooks_needs_no_password(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text(value("bmc_password") + value("ansible_become_password"))

    def used(*where: Any) -> list[Problem]:
        return locked(*where, lambda name: name.startswith("ansible_"))

    (found,) = lines(tmp_path, find=used)
    assert found.startswith("group_vars/all.yml:8: ansible_become_password is encrypted")
    # Ansible reads how to enter a host for every task.
    assert lines(tmp_path) == [found]
    (tmp_path / "group_vars/all.yml").rename(tmp_path / "group_vars/etcd.yml")
    assert lines(tmp_path) == []


def test_a_damaged_vault(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n616263\n")
    (found,) = lines(tmp_path, RIGHT)
    assert found.startswith("group_vars/all.yml: the file is not what Ansible Vault encrypts (")
    assert found.endswith("; encrypt it anew")


def test_an_inventory_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("example", "lab"):
        (tmp_path / "inventory" / name).mkdir(parents=True)
        (tmp_path / "inventory" / name / "hosts.yml").write_text("all: {}\n")
    monkeypatch.chdir(tmp_path)

    def complaint(*sources: str, is_given: bool = True, has_hosts: bool = False, needs_hosts: bool = True) -> str:
        told = missing(sources, is_given=is_given, has_hosts=has_hosts, needs_hosts=needs_hosts)
        return told.replace(f"{tmp_path}/", "")

    known = "; inventories here: inventory/example, inventory/lab"
    absent, lab = str(tmp_path / "inventory/prd"), str(tmp_path / "inventory/lab")
    assert complaint(absent) == complaint(lab, absent, has_hosts=True) == f"inventory/prd does not exist{known}"
    assert complaint(str(tmp_path / "elsewhere/prd")) == "elsewhere/prd does not exist"
    assert complaint(lab) == complaint("gpu-1,gpu-2") == complaint("localhost,") == ""
    assert complaint("/etc/hosts-of-none", is_given=False) == f"no inventory was given; add -i inventory/NAME{known}"
    assert complaint("/etc/hosts-of-none", is_given=False, has_hosts=True) == ""
    assert complaint("/etc/hosts-of-none", is_given=False, needs_hosts=False) == ""


def test_what_a_limit_without_localhost_leaves_out() -> None:
    assert limit_warning("gpu-1", ["Admit"]) == (
        "-l leaves out localhost, and with it 1 play (Admit); add localhost to have them: -l gpu-1,localhost"
    )
    assert limit_warning("all:!gpu-1", ["A", "B"]).endswith(
        "2 plays (A; B); add localhost to have them: -l 'all:!gpu-1,localhost'"
    )


@pytest.mark.slow
def test_a_limit_or_an_inventory_that_leaves_the_run_without_its_hosts(
    tmp_path: Path, ansible_playbook: Playbook
) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {gpu-1: {ansible_connection: local}}}\n")
    (tmp_path / "play.yml").write_text(
        "- {name: Check, hosts: localhost, gather_facts: false, tasks: []}\n"
        "- {name: Work, hosts: all, gather_facts: false, tasks: []}\n"
    )

    def run_play(*arguments: str, inventory: str = "hosts.yml") -> tuple[int, str]:
        done = ansible_playbook("play.yml", *arguments, inventory=inventory)
        return done.returncode, " ".join(done.stderr.split())

    code, text = run_play("-l", "gpu-1")
    assert (code, limit_warning("gpu-1", ["Check"]) in text) == (0, True)
    assert all("leaves out" not in run_play(*limit)[1] for limit in ((), ("-l", "gpu-1,localhost")))
    code, text = run_play(inventory="absent")
    assert (code, text.endswith("absent does not exist")) == (4, True)


@pytest.mark.slow
def test_the_run_ends_before_its_first_play(
    tmp_path: Path, ansible_playbook: Playbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the checkout's ansible.cfg has it. Ansible alone says neither file nor line of group_vars/all."""
    (tmp_path / "inv/group_vars").mkdir(parents=True)
    (tmp_path / "inv/hosts.yml").write_text("all: {hosts: {gpu-1: {ansible_connection: local}}}\n")
    (tmp_path / "inv/group_vars/all.yml").write_text("a: 1\n")
    (tmp_path / "play.yml").write_text("- {hosts: all, gather_facts: false, tasks: []}\n")
    assert ansible_playbook("play.yml", inventory="inv").returncode == 0
    (tmp_path / "inv/group_vars/all.yml").write_text("a: 1\n\tb: 2\n")
    (tmp_path / "inv/group_vars/etcd.yml").write_text("\tb: 2\n")
    done = ansible_playbook("play.yml", inventory="inv")
    assert done.returncode == 4
    assert done.stderr == (
        "[ERROR]: Files of the inventory cannot be read, nothing was touched: 2 problems.\n"
        "- inv/group_vars/all.yml:2: this line has a tab in it; indent with spaces\n"
        "- inv/group_vars/etcd.yml:1: this line has a tab in it; indent with spaces\n\n"
    )
    assert "PLAY" not in done.stdout
    # Ansible would tell what is wrong with hosts.yml itself some thirty lines before, once for each of its plugins.
    monkeypatch.setenv("ANSIBLE_INVENTORY_ENABLED", "yaml,auto,muster.fleet.unreadable_yaml,ini")
    monkeypatch.setenv("ANSIBLE_DUPLICATE_YAML_DICT_KEY", "error")
    (tmp_path / "inv/group_vars/etcd.yml").unlink()
    (tmp_path / "inv/group_vars/all.yml").write_text("a: 1\n")
    (tmp_path / "inv/hosts.yml").write_text("all:\n  hosts:\n    gpu-1: {a: 1}\n    gpu-1: {a: 2}\n")
    done = ansible_playbook("play.yml", inventory="inv")
    assert done.returncode == 4
    assert done.stderr == (
        "[ERROR]: Files of the inventory cannot be read, nothing was touched: 1 problem.\n"
        "- inv/hosts.yml:4: this line sets a name that is set above already; keep one of them\n\n"
    )


@pytest.mark.slow
def test_a_tag_that_nothing_has_ends_the_run(tmp_path: Path, ansible_playbook: Playbook) -> None:
    """Ansible alone runs nothing, and ends with 0, as if all were well."""
    (tmp_path / "hosts.yml").write_text("all: {hosts: {gpu-1: {ansible_connection: local}}}\n")
    (tmp_path / "play.yml").write_text(
        "- {hosts: all, gather_facts: false, tags: [preflight], tasks: [{ansible.builtin.meta: noop}]}\n"
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - block: [{ansible.builtin.debug: {msg: done}, tags: [deep]}]\n"
    )

    def run_tags(tags: str) -> tuple[int, str]:
        done = ansible_playbook("play.yml", "--tags", tags, inventory="hosts.yml")
        return done.returncode, " ".join((done.stderr or done.stdout).split())

    code, text = run_tags("preflite")
    assert code == 4
    assert "--tags preflite is no tag of these plays, so that it would run nothing; did you mean preflight?" in text
    code, text = run_tags("preflight,x")
    assert (code, "--tags x is no tag" in text, "the tags are deep, preflight" in text) == (4, True, True)
    assert [run_tags(tags)[0] for tags in ("preflight", "deep", "all", "untagged")] == [0, 0, 0, 0]


def test_the_checkout_s_configuration_tells_bad_files() -> None:
    """And the page of the collection, which has no ansible.cfg, says the same."""
    root = Path(__file__).resolve().parents[3]
    checkout, page = configparser.ConfigParser(), configparser.ConfigParser()
    checkout.read_string((root / "ansible.cfg").read_text())
    readme = (root / "collections/ansible_collections/muster/fleet/README.md").read_text()
    page.read_string(readme.partition("```ini\n")[2].partition("```")[0])
    names = ("preload", "inventory_files", "silent_hosts", "history", "roll_results")
    callbacks = ", ".join(f"muster.fleet.{name}" for name in names)
    assert page["defaults"] == {
        "callbacks_enabled": callbacks,
        "duplicate_dict_key": "error",
        "callback_result_format": "yaml",
    }
    # The other way round auto parses a file of thousands of hosts whole, to find that it names no plugin.
    assert "yaml, auto, muster.fleet.unreadable_yaml, ini" in page["inventory"]["enable_plugins"]
    assert {**checkout["defaults"], **page["defaults"]} == {**checkout["defaults"]}
    assert page["inventory"] == checkout["inventory"]
