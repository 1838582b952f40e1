"""site.yml again, after each role was verified on its hosts: nothing is left to change, in check mode neither.

Only here: idempotence and check mode of the whole fleet; and that what the roles' verifies change, they put back.
"""

from __future__ import annotations

from .fleet import Fleet


def test_a_second_run_changes_nothing_and_nobody_needs_break_glass_for_it(fleet: Fleet) -> None:
    before = break_glass_uses(fleet)
    again = fleet.playbook("site.yml", log="second")
    assert again.rc == 0, again.failures
    assert again.changed == {}
    assert before > 0, "the first run writes the roles as this identity"
    assert break_glass_uses(fleet) == before


def break_glass_uses(fleet: Fleet) -> int:
    """Requests of the break-glass identity in the audit logs."""
    count = """grep --count '"username":"break-glass"' /var/log/kubernetes/audit.log || true"""
    return sum(int(fleet.must(host, count)) for host in ("api-1", "api-2"))


def test_check_mode_with_diff_has_no_error_and_no_change(fleet: Fleet) -> None:
    """On one host of each kind: the second run looks at all."""
    hosts = {min(members) for members in fleet.lab.groups.values() if members}
    checked = fleet.playbook("site.yml", "--check", "--diff", "--limit", ",".join(sorted(hosts)), log="check")
    assert checked.rc == 0, checked.failures
    assert checked.changed == {}
