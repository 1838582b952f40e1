"""Which member of etcd is restarted, and when: not while it leads, where that was asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit
from ansible_collections.muster.fleet.plugins.modules import etcd_member

NAMES = ("etcd-1", "etcd-2", "etcd-3")


class Host:
    """A host whose member is older than its files until it is restarted, in a cluster with a leader, or without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, leader: str, *, stale: bool = True) -> None:
        self.leader, self.stale, self.done = leader, stale, list[str]()
        monkeypatch.setattr(etcd_api, "probe", self._probe)
        monkeypatch.setattr(systemd_unit, "show", lambda _: SimpleNamespace(started_at=1.0))
        monkeypatch.setattr(systemd_unit, "stale_because", lambda *_: ["/etc/etcd/etcd.yaml"] if self.stale else [])
        monkeypatch.setattr(systemd_unit, "systemctl", self._systemctl)

    def _probe(self, endpoint: str, *_: object) -> etcd_api.Health:
        return etcd_api.Health(bool(self.leader), "" if self.leader else "no leader", leads=endpoint == self.leader)

    def _systemctl(self, words: list[str]) -> None:
        self.done.append(words[0])
        self.stale = False

    def run(self, *, leader: bool, check_mode: bool = False) -> dict[str, Any]:
        """The module on etcd-1, whose endpoint is its name, as those of all are."""
        given = {
            "name": "etcd-1", "endpoints": {name: name for name in NAMES}, "unit": "etcd.service", "leader": leader,
            "restart_after": [], "timeout_s": 1.0, "ca": "", "cert": "", "key": "",
        }  # fmt: skip
        module: Any = SimpleNamespace(params=given, check_mode=check_mode)
        return etcd_member.bring_up_to_date(module)


@pytest.mark.parametrize(
    ("leads", "given", "changed", "owed"),
    [
        ("etcd-2", False, True, False),
        ("etcd-1", False, False, True),
        ("etcd-1", True, True, False),
        # Without a leader nothing moves.
        ("", False, True, False),
    ],
)
def test_a_leader_is_left_alone_where_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, leads: str, given: bool, changed: bool, owed: bool
) -> None:
    host = Host(monkeypatch, leads)
    would = host.run(leader=given, check_mode=True)
    assert host.done == []
    assert host.run(leader=given) == would
    assert (would["changed"], would["owed"], would["restarted_for"]) == (changed, owed, ["/etc/etcd/etcd.yaml"])
    assert host.done == (["restart"] if changed else [])


def test_a_leader_that_is_up_to_date_is_owed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, "etcd-1", stale=False)
    assert host.run(leader=False) == {"changed": False, "restarted_for": [], "owed": False}
    assert host.done == []
