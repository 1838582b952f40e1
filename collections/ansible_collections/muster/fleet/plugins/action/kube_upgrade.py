"""The decisions of an upgrade of etcd and Kubernetes. Thin: its rules are module_utils/kube/upgrade_rules.py."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.kube import upgrade_fleet as fleets
from ansible_collections.muster.fleet.plugins.module_utils.kube import upgrade_rules as rules
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import report
from ansible_collections.muster.fleet.plugins.modules.kube_upgrade import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.roll import RollAction, RollFailed

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.cluster.native_gangs import gangs_left
from gpu_burnin.fleet.driver_upgrade.plan import working
from gpu_burnin.fleet.repair.cluster import Cluster
from gpu_burnin.fleet.roll.batches import batches
from gpu_burnin.fleet.waves.names import LIMIT

_CLOSED = (
    "Before Kubernetes 1.36 the gate's policies cannot be on the API servers' disks: no node is let in until every "
    "server has them."
)
_GO_ON = (
    "Mend it and run this again, which goes on from here; or put the build of before back into kube_binaries_checksums "
    "and run this again, which takes back what was changed. docs/operations/upgrade.md says where that is allowed."
)


class ActionModule(RollAction):
    """One phase for the fleet; `stop` for the host that failed."""

    ARGUMENTS = ARGUMENT_SPEC
    REQUIRED_IF = (("phase", "plan", ["kubeconfig"]),)

    def phase(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the phase does; its result. Raises GpuBurninError."""
        if name == "plan":
            return self._plan(given)
        host, step = self.task_vars["inventory_hostname"], given["step"]
        if name == "stop" and step:
            raise RollFailed(f"{host} failed: {given['why']}", state=[])
        state = rules.state(self._fleet(lambda node: (), step))
        if name == "stop":
            first = f"{host} failed, and nothing was done after it: {given['why']}"
            raise RollFailed("\n".join([first, *state, _GO_ON]), state=state)
        self.show(state)
        if given["refused"]:
            raise RollFailed(given["refused"], state=state)
        return {"changed": False, "state": state}

    def _plan(self, given: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {
            "changed": False, "refused": "", "members": [], "batches": [], "etcd": "", "left": {}, "text": [],
            "state": rules.state(self._fleet(lambda node: (), given["step"])),
        }  # fmt: skip
        cluster = functools.cache(lambda: self.cluster(given))
        try:
            fleet = self._fleet(lambda node: _work(cluster(), node), given["step"])
            at_once = _at_once(given["nodes_at_once"])
            if given["step"] and (behind := rules.behind_servers(fleet)):
                raise GpuBurninError(report("nothing was changed, the upgrade is refused", behind))
            gangs = _gangs(given) if rules.changes_minor(fleet) else ""
            if found := rules.problems(fleet, given["part"], given["gang"], gangs):
                raise GpuBurninError(report("nothing was changed, the upgrade is refused", found))
        except GpuBurninError as error:
            return {**result, "refused": str(error)}
        planned, etcd = rules.plan(fleet, given["part"]), fleet.wanted("etcd")
        lines = rules.lines(fleet, planned) or ["Everything runs as the inventory pins it."]
        self.show([*lines, *([_CLOSED] if planned.close_admission else [])])
        return {
            **result,
            "members": [] if self._task.check_mode else list(self._members(planned)),
            "batches": list(batches(0, len(planned.phases["nodes"]), at_once, canary=at_once)),
            "etcd": etcd.release if etcd else "",
            "left": dict(planned.left),
            "text": lines,
        }

    def _members(self, planned: rules.Plan) -> Iterator[dict[str, str]]:
        servers = self.task_vars["groups"].get("kube_apiserver", [])
        admission = {"closed": planned.close_admission, "opened": planned.open_admission}
        for phase, hosts in {**{name: servers for name, yes in admission.items() if yes}, **planned.phases}.items():
            yield from ({"host": host, "phase": phase} for host in hosts)

    def _fleet(self, work: fleets.Work, step: str) -> fleets.Fleet:
        hostvars, groups = self.task_vars["hostvars"], self.task_vars["groups"]
        if step:
            shard = set((Path(step) / LIMIT).read_text().split())
            groups = groups | {one: [host for host in groups.get(one, ()) if host in shard] for one in fleets.NODES}
        found = {name: hostvars.raw_get(name).get("upgrade_found") for name in self.task_vars["groups"]["all"]}
        # A host that did not answer has a result too, which says no more than that.
        facts = {name: one for name, one in found.items() if isinstance(one, Mapping) and "programs" in one}
        return fleets.fleet_of(groups, facts, work)


def _gangs(given: Mapping[str, Any]) -> str:
    return gangs_left(KubeApi(Path(given["kubeconfig"]).expanduser()))


def _work(cluster: Cluster, node: str) -> tuple[str, ...]:
    return tuple(f"{pod.namespace}/{pod.name}" for pod in working(cluster.pods(node)))


def _at_once(text: str) -> int:
    """Raises GpuBurninError."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise GpuBurninError(f"nothing was changed: nodes_at_once is {text!r}; give a number of nodes, 1 or more")
    return int(text)
