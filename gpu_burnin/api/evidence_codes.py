"""Codes of what is published: those that end work at once, and why evidence is refused, in words for people."""

from __future__ import annotations

from collections.abc import Mapping

# Reasons (reasons.yaml) with which the work on a GPU is lost: nothing is won by letting it end.
FATAL = frozenset({"GPU_LOST", "XID_FATAL"})
# Why evidence is refused: what the code means, and what to do about it.
CODES: Mapping[str, tuple[str, str]] = {
    "EVIDENCE_MALFORMED": (
        "The evidence cannot be read",
        "Publish it again with gpu-burnin publish on the node; if it stays, run gpu-burnin run there.",
    ),
    "EVIDENCE_SIGNATURE": (
        "The signature is not that of the pinned host key over these bytes",
        "Find out who wrote the annotation; if the host was reinstalled, pin its new host key and test it again.",
    ),
    "EVIDENCE_NODE": (
        "The evidence is of another node or machine",
        "Find out who wrote the annotation; if the machine was replaced, test the new one with gpu-burnin run.",
    ),
    "EVIDENCE_BOOT": (
        "The evidence is of another boot",
        "Nothing, if the node has just booted: its burn-in runs by itself; else run gpu-burnin run on it.",
    ),
    "EVIDENCE_REPLAYED": (
        "Newer evidence of this node has been seen",
        "Ask for a test, whose number begins above the one seen: muster node retest NODE --reason REASON. Where the "
        "node still has newer evidence than it shows, gpu-burnin publish on it is enough.",
    ),
    "EVIDENCE_SKEW": (
        "The evidence is from the future",
        "Set the clocks of node and controller right (time_sync), then test again.",
    ),
    "EVIDENCE_EXPIRED": ("The evidence is too old", "Test the node again when it is idle."),
    "EVIDENCE_HARDWARE": (
        "GPUs, VBIOS, driver or kernel are not those that were tested",
        "Test the node again as it is now.",
    ),
    "EVIDENCE_REPORT": (
        "The report is not the one the evidence is about",
        "Fetch the report from the node again.",
    ),
    "EVIDENCE_SIMULATED": (
        "The run was on simulated hardware",
        "Run on real GPUs; only a lab may allow simulated hardware.",
    ),
    "EVIDENCE_VERDICT": (
        "The verdict is not PASS",
        "Read the report (gpu-burnin report on the node), do what its reasons say and test again.",
    ),
}
