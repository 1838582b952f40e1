"""The fleet's names in the cluster: taints, labels, annotations, identities. They all hang on one domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_DOMAIN = "muster.dev"
LABEL_PREFIX = "muster.node-restriction.kubernetes.io/"
READY_LABEL = f"{LABEL_PREFIX}ready"
VERDICT_LABEL = f"{LABEL_PREFIX}verdict"
SIMULATED_LABEL = f"{LABEL_PREFIX}simulated"
# Where the node stands, and the model of its GPUs: a key of hardware/skus.yaml.
RACK_LABEL, LEAF_LABEL, FEED_LABEL = (f"{LABEL_PREFIX}{level}" for level in ("rack", "leaf", "feed"))
GPU_LABEL = f"{LABEL_PREFIX}gpu"
# The team that a node is dedicated to.
TEAM_LABEL = f"{LABEL_PREFIX}team"
CONDITION = "GPUVerified"
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
ADMITTER_USER = "muster:admitter"
PROVISIONER_USER = "muster:provisioner"
SCALER_USER = "muster:scaler"
KUEUE_USER, JOBSET_USER = "muster:kueue", "muster:jobset"
# What people of teams are in by their certificates, and what they may do in the namespace of their team.
USERS_GROUP = "muster:users"
TEAM_MEMBER_ROLE = "muster:team-member"
# The static policy that refuses a Node without the taint, and the Node that is asked for to see it refused.
GATE_POLICY = "muster-node-gate.static.k8s.io"
GATE_PROBE_NODE = "muster-gate-probe"
NODE_USER = "system:node:"
# On what is Muster's alone to write and to remove.
MANAGED_BY: Mapping[str, str] = {"app.kubernetes.io/managed-by": "muster"}
# Where the admitter's Lease and the pause switch are.
SYSTEM_NAMESPACE = "muster-system"
LEASE = "muster-admitter"
SCALER_LEASE = "muster-scaler"
PAUSE = "muster-pause"
KIND, PLURAL, VERSION = "NodeAdmission", "nodeadmissions", "v1"
# Kueue's objects of the fleet: the check, the tree of places, who shares, and the queue of each team's namespace.
CHECK, TOPOLOGY, COHORT, LOCAL_QUEUE = "verified", "fleet", "fleet", "default"
# With machines that are switched: the check that waits for them, and by which requests Kueue has them provided.
POWER_CHECK, KUEUE_PROVISIONING = "powered", "kueue.x-k8s.io/provisioning-request"
HEARTBEAT_KIND, HEARTBEAT_PLURAL = "AgentHeartbeat", "agentheartbeats"
# Machines that the scaler switches on and off.
MACHINE_KIND, MACHINE_PLURAL = "MachinePower", "machinepowers"
# Machines that say who they are themselves, at their first boot.
ENROLMENT_KIND, ENROLMENT_PLURAL = "NodeEnrolment", "nodeenrolments"


@dataclass(frozen=True)
class Names:
    """Keys below one domain, which is the CRD's group too."""

    domain: str = DEFAULT_DOMAIN

    @property
    def preflight(self) -> str:
        """Taint: not proven in this boot (with NoExecute), or in doubt (NoSchedule alone)."""
        return f"{self.domain}/preflight"

    @property
    def quarantine(self) -> str:
        """Taint: a fault was found; its value is the reason code. NoExecute for a lost GPU or a fatal XID alone."""
        return f"{self.domain}/quarantine"

    @property
    def testing(self) -> str:
        """Taint: an admitted, idle node is tested."""
        return f"{self.domain}/testing"

    @property
    def maintenance(self) -> str:
        """Taint: a maintenance window is near or open."""
        return f"{self.domain}/maintenance"

    @property
    def team(self) -> str:
        """Label of a team's Namespace; taint of a node that is dedicated to a team: its value is the team's name."""
        return f"{self.domain}/team"

    @property
    def verified_check(self) -> str:
        """controllerName of Kueue's AdmissionCheck that the admitter judges."""
        return f"{self.domain}/verified"

    @property
    def max_runtime(self) -> str:
        """Annotation on a Job or JobSet: the seconds that it runs at most, by whoever made it."""
        return f"{self.domain}/max-runtime-s"

    @property
    def gpus_per_node(self) -> str:
        """Label of a ResourceFlavor: how many GPUs each node of it has, "mixed" where they differ."""
        return f"{self.domain}/gpus-per-node"

    @property
    def evidence(self) -> str:
        """Annotation on a Node, the node's own: the signed statement on its newest run, or its revocation."""
        return f"{self.domain}/evidence"

    @property
    def agent(self) -> str:
        """Annotation on a Node, the node's own: what its agent says of boot, request, warnings and maintenance."""
        return f"{self.domain}/agent"

    @property
    def request(self) -> str:
        """Annotation on a Node, the admitter's own: the burn-in that the agent is asked for."""
        return f"{self.domain}/request"

    @property
    def fabric_test(self) -> str:
        """Annotation on a Node, the admitter's own: the test with other nodes that the agent is asked for."""
        return f"{self.domain}/fabric-test"

    @property
    def fabric(self) -> str:
        """Annotation on a Node, the node's own: how far it has come in that test, its signed offer and view."""
        return f"{self.domain}/fabric"

    @property
    def leave(self) -> str:
        """Annotation on a Node, and on pods there, the admitter's own: by when, and why, the work is asked to leave."""
        return f"{self.domain}/leave"

    @property
    def restored(self) -> str:
        """Annotation on a Node, the admitter's own: the restore of etcd that the agent has to name in its note."""
        return f"{self.domain}/restored"

    @property
    def admitted(self) -> str:
        """Annotation on a Node, the admitter's own: what it was admitted with, for people."""
        return f"{self.domain}/admitted"

    @property
    def hold_until(self) -> str:
        """Annotation on a Pod: RFC 3339, or "checkpoint": until then it is not asked to leave by eviction."""
        return f"{self.domain}/hold-until"

    @property
    def api_version(self) -> str:
        """apiVersion of a NodeAdmission, an AgentHeartbeat, a MachinePower and a NodeEnrolment."""
        return f"{self.domain}/{VERSION}"

    @property
    def crd(self) -> str:
        """Name of the CustomResourceDefinition of NodeAdmission."""
        return f"{PLURAL}.{self.domain}"

    @property
    def heartbeat_crd(self) -> str:
        """Name of the CustomResourceDefinition of AgentHeartbeat."""
        return f"{HEARTBEAT_PLURAL}.{self.domain}"

    @property
    def machine_crd(self) -> str:
        """Name of the CustomResourceDefinition of MachinePower."""
        return f"{MACHINE_PLURAL}.{self.domain}"

    @property
    def enrolment_crd(self) -> str:
        """Name of the CustomResourceDefinition of NodeEnrolment."""
        return f"{ENROLMENT_PLURAL}.{self.domain}"
