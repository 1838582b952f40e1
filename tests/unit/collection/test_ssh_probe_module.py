"""The Ansible module ssh_probe: all problems in one failure, check mode, what is pinned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.muster.fleet.plugins.modules import ssh_probe

from tests.support.ssh_server import SshServer, StartServer, new_key


def run(capsys: pytest.CaptureFixture[str], check: bool = False, **parameters: Any) -> tuple[int, dict[str, Any]]:
    with patch_module_args({**parameters, "_ansible_check_mode": check}), pytest.raises(SystemExit) as end:
        ssh_probe.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return int(end.value.code or 0), result


def host(name: str, server: SshServer, identity: Path) -> dict[str, Any]:
    return {"name": name, "address": "127.0.0.1", "port": server.port, "identity": str(identity)}


def test_keys_are_pinned_once_and_check_mode_writes_nothing(
    start_server: StartServer, identity: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = tmp_path / "known_hosts"
    parameters = {
        "hosts": [host("node-1", start_server(), identity)],
        "known_hosts": str(known),
        "trust_new_hosts": True,
    }
    code, would = run(capsys, check=True, **parameters)
    assert (code, would["changed"], would["pinned"], known.exists()) == (0, True, ["node-1"], False)
    code, done = run(capsys, **parameters)
    assert (code, done["changed"], done["hosts"][0]["ok"]) == (0, True, True)
    code, again = run(capsys, **{**parameters, "trust_new_hosts": False})
    assert (code, again["changed"], again["pinned"]) == (0, False, [])


def test_all_problems_of_all_hosts_come_in_one_failure(
    start_server: StartServer, identity: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = [
        host("good", start_server(), identity),
        host("no-login", start_server(allowed=new_key()), identity),
        {"name": "down", "address": "127.0.0.1", "port": 1},
    ]
    code, done = run(capsys, hosts=hosts, known_hosts=str(tmp_path / "k"), trust_new_hosts=True)
    assert code == 1 and "2 of 3 hosts" in done["msg"]
    assert "no-login: login as root" in done["msg"] and "down: 127.0.0.1 port 1" in done["msg"]
    assert [h["ok"] for h in done["hosts"]] == [True, False, False]


def test_a_broken_known_hosts_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k").write_text("nonsense\n")
    code, done = run(capsys, hosts=[{"name": "a"}], known_hosts=str(tmp_path / "k"))
    assert code == 1 and "k line 1" in done["msg"]
