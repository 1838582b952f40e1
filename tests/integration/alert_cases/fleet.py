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


def _left(steps: int, more: int, **nodes: int) -> dict[str, str]:
    """An admitter that led for so many steps, and is gone with all that it told; the other one does not lead."""
    said = {
        'muster_admitter_leader{instance="api-1"}': f"1x{steps} stale _x{more}",
        'muster_admitter_leader{instance="api-2"}': f"0x{steps + more}",
    }
    return said | {
        f'muster_admitter_nodes{{instance="api-1",state="{state}"}}': f"{count}x{steps} stale _x{more}"
        for state, count in nodes.items()
    }


def _followed(steps: int, more: int, **nodes: int) -> dict[str, str]:
    """The same, and the other one leads after as many steps, with other numbers."""
    said = {'muster_admitter_leader{instance="api-2"}': f"0x{2 * steps} 1x{more}"}
    return said | {
        f'muster_admitter_nodes{{instance="api-2",state="{state}"}}': f"_x{2 * steps} {count}x{more}"
        for state, count in nodes.items()
    }


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
    # What the last leader told stands while none leads, and until the next one tells other things.
    Case(
        "MusterNodesOut",
        _left(10, 200, ready=75, suspect=25),
        _left(10, 200, ready=75, suspect=25) | _followed(10, 190, ready=100, suspect=0),
        "15m",
        "25% of the GPU nodes take no work.",
    ),
    Case(
        "MusterNodesUnwatched",
        _left(10, 200, ready=100) | {'muster_admitter_unwatched_nodes{instance="api-1"}': "2x10 stale _x200"},
        _left(10, 200, ready=100)
        | {'muster_admitter_unwatched_nodes{instance="api-1"}': "2x10 stale _x200"}
        | _followed(10, 190, ready=100)
        | {'muster_admitter_unwatched_nodes{instance="api-2"}': "_x20 0x190"},
        "30m",
        "The agents of 2 GPU nodes send no heartbeat: a fault of their GPUs would go unseen.",
    ),
    Case(
        "MusterPaused",
        _left(10, 600) | {'muster_admitter_paused{instance="api-1"}': "1x10 stale _x600"},
        # Resumed meanwhile, as the next leader tells.
        _left(10, 600)
        | {'muster_admitter_paused{instance="api-1"}': "1x10 stale _x600"}
        | _followed(10, 590)
        | {'muster_admitter_paused{instance="api-2"}': "_x20 0x590"},
        "4h5m",
        "The fleet is paused: no node is let in or tested.",
    ),
    Case(
        "MusterQuarantined",
        _left(10, 200, ready=98, quarantined=2),
        _left(10, 200, ready=98, quarantined=2) | _followed(10, 190, ready=100, quarantined=0),
        "65m",
        "2 nodes are quarantined: repair them, or release them.",
        {"state": "quarantined"},
    ),
    Case(
        "MusterHeldAlike",
        _left(10, 200, ready=97) | {'muster_admitter_held{instance="api-1",reason="XID_FATAL"}': "3x10 stale _x200"},
        # None is held for that reason any more, so the new leader does not tell of it.
        _left(10, 200, ready=97)
        | {'muster_admitter_held{instance="api-1",reason="XID_FATAL"}': "3x10 stale _x200"}
        | _followed(10, 190, ready=100),
        "35m",
        "3 nodes take no work for one reason, XID_FATAL: look for what they have in common.",
        {"reason": "XID_FATAL"},
    ),
    Case(
        "MusterProofsEnd",
        _left(10, 200, ready=100) | {'muster_admitter_proof_expires_soon{instance="api-1"}': "15x10 stale _x200"},
        _left(10, 200, ready=100)
        | {'muster_admitter_proof_expires_soon{instance="api-1"}': "15x10 stale _x200"}
        | _followed(10, 190, ready=100)
        | {'muster_admitter_proof_expires_soon{instance="api-2"}': "_x20 9x190"},
        "65m",
        "The proof of 15% of the GPU nodes has ended or soon will: they are not tested in time.",
    ),
    Case(
        "MusterTestsOverdue",
        _left(1000, 2000) | {'muster_admitter_overdue_tests{instance="api-1"}': "3x1000 stale _x2000"},
        _left(1000, 2000)
        | {'muster_admitter_overdue_tests{instance="api-1"}': "3x1000 stale _x2000"}
        | _followed(1000, 1000)
        | {'muster_admitter_overdue_tests{instance="api-2"}': "_x2000 0x1000"},
        "1445m",
        "3 nodes were never idle since their test was due.",
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
        "The proof of 15% of the GPU nodes has ended or soon will: they are not tested in time.",
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
