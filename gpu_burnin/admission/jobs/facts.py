"""What the check asks of a node, from the record, the Node and the agent's note: made once for each version of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from gpu_burnin.admission.decide.desired import our_taints
from gpu_burnin.admission.decide.fabric import passed_at
from gpu_burnin.admission.decide.facts import node_ttl_s
from gpu_burnin.admission.decide.nodes import boot_id, labelled_ready, taints
from gpu_burnin.admission.decide.times import when
from gpu_burnin.admission.jobs.decide import NodeFacts, test_end
from gpu_burnin.admission.service.cache import Nodes, Pods, Records
from gpu_burnin.admission.view import Node
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, RecordError

_Versions = tuple[str, str, bool]


def facts_of(
    record: NodeAdmission, node: Node | None, agent: AgentNote | None, names: Names, *, idle: bool
) -> NodeFacts:
    """The facts of one node."""
    status, request = record.status, record.status.request
    found = taints(node) if node is not None else []
    ours = [one for one in found if one.get("key") in our_taints(names) and one.get("key") != names.team]
    team = next((str(one.get("value") or "") for one in found if one.get("key") == names.team), "")
    begun = when(request.since) if request is not None else None
    return NodeFacts(
        state=status.state,
        code=status.code,
        message=status.message.removeprefix(f"{record.name}: "),
        registered=node is not None,
        labelled=node is not None and labelled_ready(node),
        taints=tuple(f"{one.get('key')}:{one.get('effect')}" for one in ours),
        team=team,
        proofs=status.proofs,
        max_age_s=node_ttl_s(record.name, record.spec.evidence.max_age_s),
        test=request.level if request is not None else "",
        tested_until=test_end(request.level, begun) if request is not None and begun is not None else None,
        idle=idle,
        announced=agent.maintenance if agent is not None else None,
        fabric_at=passed_at(status.fabric, boot_id(node)) if node is not None else None,
        has_nics=bool(record.spec.fabric),
    )


@dataclass
class FactsCache:
    """Facts by node. Reading a record costs a hundred times what a look at its version does.

    `is_judged` is whether the admitter has decided on all that it has heard of the node.
    """

    names: Names
    nodes: Nodes
    records: Records
    pods: Pods
    agent_of: Callable[[Node], AgentNote | None]
    is_judged: Callable[[str], bool] = lambda name: True
    _known: dict[str, tuple[_Versions, NodeFacts]] = field(default_factory=dict)

    def of(self, names: Iterable[str]) -> dict[str, NodeFacts]:
        """Those of these nodes of which there is a record that can be read."""
        # Asked first: what is heard meanwhile is in the facts, or makes the node one that is not judged.
        found = ((name, self.is_judged(name), self._one(name)) for name in names)
        known = ((name, judged, facts) for name, judged, facts in found if facts is not None)
        return {name: facts if judged else replace(facts, judged=False) for name, judged, facts in known}

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._known.pop(name, None)

    def _one(self, name: str) -> NodeFacts | None:
        idle = self.pods.idle(name)
        versions = self.records.version_of(name), self.nodes.version_of(name), idle
        known = self._known.get(name)
        if known is not None and known[0] == versions:
            return known[1]
        try:
            record = self.records.get(name)
        except RecordError:
            record = None
        if record is None:
            self._known.pop(name, None)
            return None
        node = self.nodes.get(name)
        agent = self.agent_of(node) if node is not None else None
        facts = facts_of(record, node, agent, self.names, idle=idle)
        # What came meanwhile is newer than the versions, and is read again at the next look.
        self._known[name] = versions, facts
        return facts
