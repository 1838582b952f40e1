"""Alerts of the fleet as a whole."""

from __future__ import annotations

from .case import Case


def _leading(nodes: int, **numbers: int) -> dict[str, str]:
    """What the leading admitter of so many nodes says; one that does not lead says other things."""
    names = {name if "{" in name else f"{name}{{}}": value for name, value in numbers.items()}
    said = {
        'muster_admitter_leader{instance="api-1"}': "1x200",
        'muster_admitter_leader{instance="api-2"}': "0x200",
        'muster_admitter_nodes{instance="api-1",state="ready"}': f"{nodes}x200",
    }
    for name, value in names.items():
        metric, _, labels = name.rstrip("}").partition("{")
        more = f",{labels}" if labels else ""
        said[f'muster_admitter_{metric}{{instance="api-1"{more}}}'] = f"{value}x200"
        said[f'muster_admitter_{metric}{{instance="api-2"{more}}}'] = f"{90}x200"
    return said


def _joins(count: str) -> dict[str, str]:
    return {'muster_admitter_joins_total{instance="api-1"}': count}


CASES = (
    Case(
        "MusterNodesOut",
        {
            'muster_admitter_leader{instance="api-1"}': "1x60",
            'muster_admitter_nodes{instance="api-1",state="ready"}': "75x60",
            'muster_admitter_nodes{instance="api-1",state="suspect"}': "25x60",
            # The other admitter does not lead, and what it last saw does not count.
            'muster_admitter_leader{instance="api-2"}': "0x60",
            'muster_admitter_nodes{instance="api-2",state="ready"}': "100x60",
        },
        {
            'muster_admitter_leader{instance="api-1"}': "1x60",
            'muster_admitter_nodes{instance="api-1",state="ready"}': "95x60",
            'muster_admitter_nodes{instance="api-1",state="held"}': "5x60",
        },
        "15m",
        "25% of the GPU nodes take no work.",
    ),
    Case(
        "MusterNodesUnwatched",
        _leading(50, unwatched_nodes=2),
        _leading(50, unwatched_nodes=0),
        "2m",
        "The agents of 2 GPU nodes send no heartbeat: a fault of their GPUs would go unseen.",
    ),
    Case(
        "MusterQuarantined",
        {
            'muster_admitter_leader{instance="api-1"}': "1x200",
            'muster_admitter_nodes{instance="api-1",state="quarantined"}': "2x200",
        },
        {
            'muster_admitter_leader{instance="api-1"}': "1x200",
            'muster_admitter_nodes{instance="api-1",state="quarantined"}': "2x60 0x140",
        },
        "65m",
        "2 nodes are quarantined: repair them, or release them.",
        {"state": "quarantined"},
    ),
    Case(
        "MusterTestsOverdue",
        {
            'muster_admitter_leader{instance="api-1"}': "1x3000",
            'muster_admitter_overdue_tests{instance="api-1"}': "3x3000",
        },
        {
            'muster_admitter_leader{instance="api-1"}': "1x3000",
            'muster_admitter_overdue_tests{instance="api-1"}': "3x2000 0x1000",
        },
        "1445m",
        "3 nodes were never idle since their test was due.",
    ),
    Case(
        "MusterHeldAlike",
        _leading(100, **{'held{reason="XID_FATAL"}': 3, 'held{reason="HELD_BY_PERSON"}': 20}),
        _leading(100, **{'held{reason="XID_FATAL"}': 2, 'held{reason="HELD_BY_PERSON"}': 20}),
        "35m",
        "3 nodes take no work for one reason, XID_FATAL: look for what they have in common.",
        {"reason": "XID_FATAL"},
    ),
    Case(
        "MusterProofsEnd",
        _leading(100, proof_expires_soon=15),
        _leading(100, proof_expires_soon=9),
        "65m",
        "The proof of 15% of the GPU nodes ends within a day: they are not tested in time.",
    ),
    Case(
        "MusterJoinsFast",
        {**_leading(300), **_joins("0+5x200")},
        {**_leading(300), **_joins("0+1x200")},
        "20m",
        "100 nodes were let in within ten minutes: they were away together.",
    ),
    Case(
        "MusterJoinsStalled",
        {**_leading(100, delayed_nodes=2), **_joins("7x200")},
        {**_leading(100, delayed_nodes=2), **_joins("0+1x200")},
        "35m",
        "The admitter has tried 2 nodes in vain, and let none in for a quarter of an hour.",
    ),
)
