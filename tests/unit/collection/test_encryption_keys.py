"""Replacing the encryption key: what files, servers and etcd tell, and what is refused before anything is lost."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.pki import encryption_keys as keys
from ansible_collections.muster.fleet.plugins.module_utils.pki.encryption_keys import Facts, Key
from ansible_collections.muster.fleet.plugins.modules import encryption_key

NOW = datetime(2026, 11, 23, 14, 0, tzinfo=UTC)
SECRET = base64.b64encode(b"o" * 32).decode()
OLD = Key("muster", SECRET)
NEW = keys.made(b"n" * 32, NOW)


def facts(*held: Key, servers: dict[str, tuple[Key, ...]] | None = None, stored: dict[str, int] | None = None) -> Facts:
    there = servers if servers is not None else {"api-1": held, "api-2": held}
    return Facts(held, {host: [key.shown for key in its] for host, its in there.items()}, stored or {})


def test_a_file_of_one_bare_key_is_the_first_of_a_fleet_and_others_keep_their_names() -> None:
    assert keys.parse(f"{SECRET}\n", "f") == (OLD,)
    assert keys.parse(keys.text_of([NEW, OLD]), "f") == (NEW, OLD)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "but empty"),
        ("c2hvcnQ=\n", "line 1 of f is not 32 bytes in base64"),
        (f"a {SECRET}\nb nonsense!\n", "line 2 of f is not 32 bytes"),
        (f"a {SECRET}\na {SECRET}\n", "names two keys the same"),
        (f"a {SECRET}\nb {SECRET}\nc {SECRET}\n", "3 keys (a, b, c), of rotations that never ended"),
    ],
)
def test_a_spoilt_file_is_refused_and_not_shown(text: str, why: str) -> None:
    with pytest.raises(FleetError) as error:
        keys.parse(text, "f")
    assert why in str(error.value)
    assert SECRET not in str(error.value) and "c2hvcnQ" not in str(error.value)


def test_neither_a_key_nor_what_is_shown_of_it_has_its_secret() -> None:
    assert SECRET not in repr(OLD) + OLD.shown
    assert OLD.shown != Key("muster", base64.b64encode(b"x" * 32).decode()).shown


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"k8s:enc:secretbox:v1:muster:\x00", "muster"),
        (b"k8s:enc:aescbc:v1:old:\x00", "aescbc:old"),
        (b"k8s\x00\n", ""),
        (b"", ""),
    ],
)
def test_a_value_in_etcd_tells_its_key(value: bytes, name: str) -> None:
    assert keys.of_value(value) == name


def test_the_whole_way() -> None:
    one = facts(OLD)
    two = keys.add(one, b"n" * 32, NOW)
    assert two == (OLD, NEW)
    led = keys.lead(facts(*two))
    assert led == (NEW, OLD)
    assert keys.drop(facts(*led, stored={NEW.name: 200})) == (NEW,)


def test_a_step_that_is_done_changes_nothing() -> None:
    for held in ((OLD, NEW), (NEW, OLD), (NEW,)):
        assert keys.add(facts(*held), b"m" * 32, NOW + timedelta(hours=23)) == held
    assert keys.lead(facts(NEW, OLD)) == (NEW, OLD)
    assert keys.lead(facts(NEW)) == (NEW,) == keys.drop(facts(NEW))


def test_a_key_is_replaced_again_a_day_later() -> None:
    assert len(keys.add(facts(NEW), b"m" * 32, NOW + timedelta(days=1))) == 2


def test_a_stolen_key_is_replaced_however_young() -> None:
    found = keys.add(facts(NEW), b"m" * 32, NOW + timedelta(hours=1), however_young=True)
    assert found[0] == NEW and len(found) == 2
    assert keys.add(facts(OLD, NEW), b"m" * 32, NOW, however_young=True) == (OLD, NEW), "the rotation goes on"


def test_a_key_does_not_write_before_every_server_reads_with_it() -> None:
    with pytest.raises(FleetError, match="api-2 cannot read with the key muster-20261123t140000z yet"):
        keys.lead(facts(OLD, NEW, servers={"api-1": (OLD, NEW), "api-2": (OLD,)}))


def test_a_key_is_not_dropped_while_a_server_writes_with_it() -> None:
    with pytest.raises(FleetError, match="api-2 still writes with the key muster "):
        keys.drop(facts(NEW, OLD, servers={"api-1": (NEW, OLD), "api-2": (OLD, NEW)}))


def test_a_key_is_not_dropped_while_something_is_under_it() -> None:
    with pytest.raises(FleetError, match="1 values in etcd are still under the key muster"):
        keys.drop(facts(NEW, OLD, stored={"muster": 1, NEW.name: 199}))


OTHER = Key("muster", base64.b64encode(b"x" * 32).decode())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (facts(OLD, servers={"api-1": (OLD,)}), "api-2 did not say which keys it has"),
        (facts(OLD, servers={"api-1": (OLD,), "api-2": ()}), "api-2 has no key in its configuration"),
        (facts(OLD, servers={"api-1": (OLD,), "api-2": (NEW, OLD)}), "api-2 writes with the key muster-2026"),
        (facts(OLD, servers={"api-1": (OLD,), "api-2": (OTHER,)}), "api-2 writes with the key muster "),
        (facts(OLD, stored={"muster": 9, "aescbc:k": 3}), "3 under aescbc:k"),
    ],
)
def test_a_fleet_that_is_not_the_controllers_is_refused(wrong: Facts, why: str) -> None:
    with pytest.raises(FleetError, match=why):
        keys.check(wrong, ["api-1", "api-2"])


def test_a_server_that_a_killed_run_left_behind_is_none_of_another_fleet() -> None:
    keys.check(facts(NEW, servers={"api-1": (NEW,), "api-2": (NEW, OLD)}), ["api-1", "api-2"])


class Module:
    """As much of AnsibleModule as the step needs."""

    def __init__(self, path: Path, step: str, held: tuple[Key, ...], *, check: bool = False, **given: object) -> None:
        shown = {"api-1": [key.shown for key in held]}
        self.params = {
            "path": str(path),
            "step": step,
            "hosts": ["api-1"],
            "servers": shown,
            "stored": {},
            "resources": ["secrets"],
            "however_young": False,
            **given,
        }
        self.check_mode = check


def test_the_file_follows_and_the_dropped_key_is_kept_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "encryption-key"
    path.write_text(f"{SECRET}\n")
    assert encryption_key.rotate(Module(path, "add", (OLD,), check=True))["changed"]  # type: ignore[arg-type]
    assert path.read_text() == f"{SECRET}\n"
    for step in ("add", "lead", "drop"):
        done = encryption_key.rotate(Module(path, step, keys.parse(path.read_text(), "")))  # type: ignore[arg-type]
        assert done["changed"] and SECRET not in str(done)
    (left,) = keys.parse(path.read_text(), "")
    assert left.name != "muster" and path.stat().st_mode & 0o777 == 0o600
    dropped = path.with_name("encryption-key.dropped")
    assert dropped.read_text() == f"muster {SECRET}\n" and dropped.stat().st_mode & 0o777 == 0o600


def test_a_run_that_ended_between_both_files_keeps_one_line(tmp_path: Path) -> None:
    path = tmp_path / "encryption-key"
    path.write_text(keys.text_of((NEW, OLD)))
    dropped = path.with_name("encryption-key.dropped")
    dropped.write_text(keys.text_of((OLD,)))
    encryption_key.rotate(Module(path, "drop", (NEW, OLD)))  # type: ignore[arg-type]
    assert dropped.read_text() == keys.text_of((OLD,))


def test_a_wildcard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="has a wildcard; name each kind"):
        encryption_key.rotate(Module(tmp_path / "k", "add", (OLD,), resources=["*.*"]))  # type: ignore[arg-type]
