"""What tests between nodes write: requests on Nodes, and into the ledger what they found. Each is of one version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound, admissions_path, node_path
from gpu_burnin.admission.decide.desired import map_patch, version_test
from gpu_burnin.admission.service.cache import Nodes, Records
from gpu_burnin.admission.view import Node, Patch
from gpu_burnin.api.fabric_note import FabricRequest, fabric_text
from gpu_burnin.api.fabric_proof import FabricProof
from gpu_burnin.api.names import Names
from gpu_burnin.system.codec import to_json


@dataclass
class Writes:
    """Where an object has changed meanwhile it is read anew, and the caller tries again."""

    names: Names
    api: KubeApi
    nodes: Nodes
    records: Records
    enqueue: Callable[[str], None]

    def give(self, request: FabricRequest, nodes: Mapping[str, Node]) -> None:
        """Bring the request to these members; the next step brings it to those that changed meanwhile.

        Raises ApiError, after all were tried: whether it has come to those that it names is not known then.
        """
        each(nodes, lambda name: self._annotate(name, nodes[name], fabric_text(request)))

    def take_away(self, nodes: Mapping[str, Node]) -> bool:
        """Whether the requests of all these members are gone. Raises ApiError, after all were tried."""
        return each(nodes, lambda name: self._annotate(name, nodes[name], None))

    def read(self, names: Iterable[str]) -> None:
        """Read these Nodes anew: the watch may be late, and a write whose answer was lost may have come to pass."""
        for name in names:
            if (item := self.api.find(node_path(name))) is not None:
                self.nodes.put(item)

    def keep(self, name: str, proof: FabricProof) -> bool:
        """Whether the proof is in the ledger."""
        version = self.records.version_of(name)
        patch: Patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status/fabric", "value": to_json(proof)},
        ]
        path = admissions_path(self.names, name)
        if not self._patch(path, patch, f"write what tests between nodes found of {name}", self.records, "/status"):
            return False
        self.enqueue(name)
        return True

    def _annotate(self, name: str, node: Node, text: str | None) -> bool:
        change = map_patch("/metadata/annotations", node["metadata"].get("annotations"), {self.names.fabric_test: text})
        if not self._patch(node_path(name), [version_test(node), *change], f"patch node {name}", self.nodes):
            return False
        self.enqueue(name)
        return True

    def _patch(self, path: str, patch: Patch, what: str, store: Nodes | Records, part: str = "") -> bool:
        try:
            store.put(self.api.patch(path + part, patch, what))
        except Conflict:
            if (item := self.api.find(path)) is not None:
                store.put(item)
            return False
        except NotFound:
            return True
        return True


def each(names: Iterable[str], write: Callable[[str], bool]) -> bool:
    """Whether it was done for each. Raises the first ApiError, after all were tried: one holds up no other."""
    done, refused = True, None
    for name in list(names):
        try:
            done = write(name) and done
        except ApiError as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return done
