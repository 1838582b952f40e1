"""Exact collectives between hosts over TCP: no check of one node's plan, but a part of the tests between nodes."""

from gpu_burnin.checks.fabric.meeting import Fault, Meeting, Peer
from gpu_burnin.checks.fabric.member import run
from gpu_burnin.checks.fabric.result import Finding

__all__ = ("Fault", "Finding", "Meeting", "Peer", "run")
