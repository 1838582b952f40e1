"""Nodes that wait to be let in: tested beside the places of others, and their suspects are told from proven nodes."""

from __future__ import annotations

from gpu_burnin.admission.decide.fabric import FABRIC_WAITS
from tests.support.fabric_fleet import Fleet, fleet


def waiting(made: Fleet, *names: str) -> None:
    """They passed their own burn-in, and were never let in."""
    for name in names:
        made.status(name, state="testing", code=FABRIC_WAITS, accepted=None)


def test_two_that_wait_are_tested_with_each_other_though_no_place_is_left() -> None:
    made = fleet(4, places=0)
    waiting(made, "gpu-1", "gpu-3")
    made.service.tick()
    assert made.under_test() == {"gpu-1", "gpu-3"}


def test_one_that_waits_alone_needs_a_place_for_the_partner_that_works() -> None:
    made = fleet(3, places=0)
    waiting(made, "gpu-2")
    made.service.tick()
    assert made.under_test() == set()
    made = fleet(3, places=2)
    waiting(made, "gpu-2")
    made.service.tick()
    assert len(made.under_test()) == 2 and "gpu-2" in made.under_test()


def test_a_suspect_that_was_never_let_in_is_tested_until_it_is_named_by_those_that_are_proven() -> None:
    made = fleet(4)
    made.go_on(120)
    made.bad = {"gpu-4"}
    made.status("gpu-4", state="testing", code=FABRIC_WAITS, accepted=None, fabric=None)
    made.go_on(1200)
    assert made.outcomes() == {"gpu-1": "passed", "gpu-2": "passed", "gpu-3": "passed", "gpu-4": "named"}


def test_a_claim_that_a_retest_has_ended_is_not_carried_into_the_next_tests() -> None:
    made = fleet(3)
    made.go_on(120)
    old = {**made.proof("gpu-3"), "outcome": "named", "testedAt": "2026-11-28T11:00:00Z", "failures": 3, "claim": "x"}
    # decide() holds it against the node no more: the code says what it waits for.
    made.status("gpu-3", state="testing", code=FABRIC_WAITS, fabric=old, retested="2026-11-28T11:30:00Z")
    made.now_s += 5.0
    made.service.tick()
    assert "gpu-3" in made.under_test()
    for _ in range(60):
        made.now_s += 1.0
        made.service.tick()
        for name in made.under_test():
            item = made.objects[f"/api/v1/nodes/{name}"]
            taints = [{"key": "muster.dev/testing", "effect": "NoSchedule"}]
            if item["spec"].get("taints") != taints:
                made.put(f"/api/v1/nodes/{name}", {**item, "spec": {"taints": taints}})
            text = made.notes(name)["muster.dev/fabric-test"]
            made.annotate(name, "muster.dev/fabric", made.answer(name, made.hosts[name], text))
    assert (made.proof("gpu-3")["outcome"], made.proof("gpu-3").get("claim", "")) == ("passed", "")


def test_nodes_of_a_job_that_is_about_to_start_are_in_no_test_that_it_does_not_wait_for() -> None:
    made = fleet(4)
    made.service.candidates.spoken_for = lambda name: ["ml/job"] if name in ("gpu-1", "gpu-2", "gpu-3") else []
    made.service.tick()
    assert made.under_test() == set()
    made = fleet(4, places=0)
    made.service.candidates.spoken_for = lambda name: ["ml/job"] if name in ("gpu-1", "gpu-2", "gpu-3") else []
    made.service.candidates.wanted = lambda name, summary: "a job" if name in ("gpu-1", "gpu-2") else ""
    made.service.tick()
    assert made.under_test() == {"gpu-1", "gpu-2"}


def test_the_last_of_an_odd_job_is_tested_with_another_one_of_it_that_has_passed() -> None:
    """All of the fleet is the job's, and no place is left for standing tests."""
    made = fleet(3, places=0)
    made.service.candidates.spoken_for = lambda name: ["ml/job"]
    made.service.candidates.wanted = lambda name, summary: "" if made.proof(name) else "a job"
    made.go_on(40)
    assert made.outcomes() == dict.fromkeys(made.hosts, "passed")
    assert sorted(made.proof(name)["passes"] for name in made.hosts) == [1, 1, 2]


def test_a_suspect_of_a_job_is_tested_with_nodes_of_its_job_and_of_no_other() -> None:
    jobs = {"gpu-1": ["ml/a"], "gpu-2": ["ml/a"], "gpu-3": ["ml/b"]}
    made = fleet(3)
    made.go_on(120)
    made.service.candidates.spoken_for = lambda name: jobs[name]
    suspect = {**made.proof("gpu-1"), "outcome": "suspect", "passes": 0}
    made.status("gpu-1", fabric=suspect, state="suspect", code="FABRIC_SUSPECT")
    made.now_s += 5.0
    made.service.tick()
    assert made.under_test() == {"gpu-1", "gpu-2"}


def test_whose_partner_does_not_answer_is_tested_with_the_next_one() -> None:
    made = fleet(3, dead={"gpu-1"})
    made.go_on(200)
    assert made.outcomes() == {"gpu-1": "", "gpu-2": "passed", "gpu-3": "passed"}
