"""What may happen to a node, in whatever order, and what the admitter does of it: its looks may end after any write."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpu_burnin.admission.decide import decide, gated, withheld
from gpu_burnin.admission.view import Evidence, View
from gpu_burnin.api.agent_note import AgentNote, Answer, Maintenance
from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.record import Ask, Identity, State
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import MACHINE, NOW, make_node
from tests.support.decide_helpers import GPU_POD, HARDWARE, NAMES, PASSED, RULES, carried_out, changed, make_view

STEPS = 200
BOOTS = [f"boot-{number}" for number in range(STEPS)]
FORGED = replace(PASSED, node="gpu-2")


@dataclass
class Machine:
    """The truth, of which the admitter sees only what is in the view; `signed` is all that it ever signed."""

    rng: random.Random
    boot: int = 0
    sequence: int = 0
    key: int = 0
    now: datetime = NOW
    signed: list[tuple[int, Statement]] = field(default_factory=list)
    view: View = field(
        default_factory=lambda: make_view(None, node=make_node(boot=BOOTS[0]), agent=AgentNote(BOOTS[0]))
    )

    def happen(self) -> str:
        """One thing happens; its name."""
        name = self.rng.choice([name for name in dir(self) if name.startswith("do_")])
        getattr(self, name)()
        self.now += timedelta(seconds=self.rng.choice([0, 1, 5, 60, 900, 4000]))
        if self.view.record and self.view.record.status.state is not State.READY:
            self.view = replace(self.view, test="")  # the schedule chooses from nodes at work
        return name

    def do_reboot(self) -> None:
        self.boot += 1

    def do_agent_speaks(self) -> None:
        self.view = replace(self.view, agent=AgentNote(BOOTS[self.boot]))

    def do_agent_answers(self) -> None:
        request = self.view.record.status.request if self.view.record else None
        if request is not None and self.view.agent is not None:
            answer = Answer(request.id, self.rng.choice(["running", "done", "refused"]), "busy")
            self.view = replace(self.view, agent=replace(self.view.agent, request=answer))

    def do_agent_falls_silent(self) -> None:
        self.view = replace(self.view, agent=None)

    def do_kubelet_reports(self) -> None:
        # The gate refuses the status of a new boot while the node may take work.
        assert self.view.node is not None
        old = self.view.node["status"]["nodeInfo"]["bootID"]
        if old == BOOTS[self.boot] or gated(self.view.node, NAMES):
            self.view = changed(self.view, boot=BOOTS[self.boot], kubelet="True")

    def do_kubelet_stops(self) -> None:
        self.view = changed(self.view, kubelet="Unknown")

    def do_run(self) -> None:
        self.sequence += 1
        statement = replace(
            PASSED,
            boot_id=BOOTS[self.boot],
            sequence=self.sequence,
            verdict=self.rng.choice([Verdict.PASS, Verdict.PASS, Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE]),
            level=self.rng.choice(["quick", "standard", "standard", "extended"]),
            finished_at=self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            report_sha256=f"{self.rng.getrandbits(256):064x}",
            hardware_sha256=self.rng.choice(["3", "3", "3", "4"]) * 64,
            simulated=self.rng.random() < 0.1,
        )
        self.signed.append((self.key, statement))
        self.publish(self.key, statement)

    def do_come_up_well(self) -> None:
        """Everything that lets a node in, at once."""
        for step in (self.do_agent_speaks, self.do_kubelet_reports, self.do_let_go, self.do_run):
            step()
        self.do_work()

    do_come_up_well_too = do_come_up_well

    def do_replay(self) -> None:
        if self.signed:
            self.publish(*self.rng.choice(self.signed))

    def do_forge(self) -> None:
        forged = [Evidence(), Evidence(FORGED, HARDWARE), Evidence(replace(PASSED, machine_id="c" * 32), HARDWARE)]
        self.view = replace(self.view, evidence=self.rng.choice(forged))

    def do_ask(self) -> None:
        what = self.rng.choice(["hold", "quarantine", "repair", "retest"])
        since = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.view = changed(self.view, spec={what: Ask("ann", "a reason", since)})

    def do_let_go(self) -> None:
        self.view = changed(self.view, spec={"hold": None, "quarantine": None, "repair": None, "retest": None})

    def do_work(self) -> None:
        self.view = replace(self.view, pods=self.rng.choice([(), (), (GPU_POD,)]))

    def do_choose(self) -> None:
        self.view = replace(self.view, test=self.rng.choice(["", "quick", "standard"]))

    def do_maintain(self) -> None:
        if self.view.agent is not None:
            notice = Maintenance("azure", self.rng.choice(["none", "none", "started", "unknown"]))
            self.view = replace(self.view, agent=replace(self.view.agent, maintenance=notice))

    def do_pause(self) -> None:
        self.view = replace(self.view, paused=self.rng.choice(["", "", "", "rollout"]))

    def do_install_anew(self) -> None:
        if self.rng.random() < 0.2:
            self.key, self.sequence = self.key + 1, 0
            self.view = changed(self.view, spec={"identity": Identity(f"ssh-ed25519 {self.key}", MACHINE)})
            self.view = replace(self.view, evidence=Evidence(None, {}, "EVIDENCE_SIGNATURE", "another key"))

    def publish(self, key: int, statement: Statement) -> None:
        verified = Evidence(statement, HARDWARE)
        refused = Evidence(None, {}, "EVIDENCE_SIGNATURE", "another key")
        self.view = replace(self.view, evidence=verified if key == self.key else refused)

    def decide(self) -> View:
        """A look of the admitter, with or without leave, which may end after any of its writes."""
        decision = decide(self.view, RULES, self.now)
        if decision.needs is not None and self.rng.random() < 0.3:
            decision = withheld(decision, "no room", None)
            assert decision.needs is None
        done = self.rng.choice([0, 1, 2, 3, 3, 3, 3, 3])
        if done < 3:
            decision = replace(decision, node_status_patch=None, evict=())
        if done < 2:
            decision = replace(decision, node_patch=None)
        if done >= 1:
            self.view = carried_out(self.view, decision)
        return self.view


def is_open(view: View) -> bool:
    """Whether its Node takes work."""
    return view.node is not None and not gated(view.node, NAMES)


@dataclass
class Restored(Machine):
    """A machine whose ledger and Node are put back to what they once were, again and again."""

    kept: View | None = None

    def do_install_anew(self) -> None:
        """The key stays: what is carried over counts for it alone."""

    def do_snapshot(self) -> None:
        if self.kept is None or not is_open(self.kept) or self.rng.random() < 0.1:
            self.kept = self.view

    do_snapshot_too = do_snapshot

    def do_restore(self) -> None:
        kept, record = self.kept, self.view.record
        if kept is None or kept.record is None or record is None:
            return
        self.now += timedelta(seconds=1)
        seen = max(record.status.highest_sequence, record.spec.identity.carried_sequence)
        of = record.status if seen == record.status.highest_sequence else None
        report = of.highest_report_sha256 if of is not None else record.spec.identity.carried_report_sha256
        identity = replace(record.spec.identity, carried_sequence=seen, carried_report_sha256=report)
        mark = Ask("muster:provisioner", "snapshot", self.now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        spec = replace(record.spec, identity=identity, restored=mark)
        self.view = replace(
            self.view,
            record=replace(kept.record, spec=spec),
            node=kept.node,
            evidence=kept.evidence,
            agent=kept.agent,
        )

    def do_agent_names_the_restore(self) -> None:
        """With its newest evidence, as the agent does."""
        mark = self.view.record.spec.restored if self.view.record is not None else None
        own = [statement for key, statement in self.signed if key == self.key]
        if mark is not None and own:
            self.publish(self.key, own[-1])
            self.view = replace(self.view, agent=AgentNote(BOOTS[self.boot], restored=mark.since))

    def do_come_back(self) -> None:
        """Nobody asks anything any more, kubelet reports, and the agent speaks."""
        for step in (self.do_let_go, self.do_kubelet_reports, self.do_agent_names_the_restore):
            step()
