"""What a node's own annotations say. The signature is checked once for each text, what is cheap at each look."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_burnin.admission.decide.nodes import annotation
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.sshsig import signature_holds
from gpu_burnin.admission.view import Evidence
from gpu_burnin.api.agent_note import AgentNote, NoteError, read_note
from gpu_burnin.api.evidence import EvidenceError, decode_annotation, read_envelope
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission
from gpu_burnin.errors import GpuBurninError


@dataclass
class Verifier:
    """Reads annotations. Remembers of each node which text, with which key, was found authentic or not."""

    names: Names
    metrics: Metrics
    _known: dict[str, tuple[bytes, bool]] = field(default_factory=dict)

    def evidence(self, record: NodeAdmission, node: Mapping[str, Any]) -> Evidence:
        """The node's evidence, judged by its pinned host key alone: what the record remembers is decide()'s."""
        text = annotation(node, self.names.evidence)
        if text is None:
            return Evidence()
        name, key = record.name, record.spec.identity.host_key
        if not key:
            message = (
                f"{name}: its NodeAdmission has no host key; probe the host (muster probe) and run site.yml, or where "
                f"attached `muster attach approve {name}`"
            )
            return Evidence(code="HOST_KEY_UNKNOWN", message=message)
        bound = record.spec.identity.node_uid
        if bound and bound != str(node["metadata"].get("uid", "")):
            message = (
                f"{name}: its Node was made anew since its machine was approved; see that it is the same one, then "
                f"`muster attach approve {name} --again`"
            )
            return Evidence(code="EVIDENCE_NODE", message=message)
        try:
            envelope = decode_annotation(text)
            digest = hashlib.sha256(
                b"\0".join([key.encode(), envelope.statement, envelope.signature.encode("utf-8", "replace")])
            ).digest()
            known = self._known.get(name)
            if known is None or known[0] != digest:
                holds = signature_holds(envelope.statement, envelope.signature, key)
                self.metrics.add("evidence_verified", {"result": "authentic" if holds else "refused"})
                known = self._known[name] = digest, holds
            if not known[1]:
                message = f"{name}: the evidence is not signed by its pinned host key"
                return Evidence(code="EVIDENCE_SIGNATURE", message=message)
            verified = read_envelope(envelope)
            return Evidence(verified.statement, verified.hardware)
        except EvidenceError as error:
            return Evidence(error.statement, error.hardware, error.code, f"{name}: {error}")
        except GpuBurninError as error:
            return Evidence(code="HOST_KEY_UNKNOWN", message=f"{name}: {error}")

    def agent(self, node: Mapping[str, Any]) -> AgentNote | None:
        """The agent's note, None where there is none that can be read."""
        text = annotation(node, self.names.agent)
        try:
            return None if text is None else read_note(text)
        except NoteError:
            return None

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._known.pop(name, None)
