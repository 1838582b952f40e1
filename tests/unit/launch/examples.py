"""Requests that tests start from."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_burnin.api.names import Names
from gpu_burnin.launch.objects import INDEX_LABEL, config_map, job_set
from gpu_burnin.launch.pack import pack_text
from gpu_burnin.launch.request import Request
from tests.support.launched_pod import PodProcess, lay_out

REQUEST = Request(
    name="train-x7k2p",
    team="vision",
    nodes=2,
    gpus_per_node=8,
    processes_per_node=2,
    image="registry.example/torch:2",
    entry="train.py",
    sha256="0" * 64,
    model="h100-sxm5-80gb",
)


def pod_of(
    root: Path, text: str, *, python: str = sys.executable, leave: str = "", index: int = 0, **of: Any
) -> PodProcess:
    """A pod whose processes run a script."""
    request = replace(REQUEST, **{"nodes": 1, "grace_s": 20, **of})
    packed = pack_text(request.entry, text)
    [replicated] = job_set(request, Names())["spec"]["replicatedJobs"]
    template = replicated["template"]["spec"]["template"]
    # As Job, JobSet, the scheduler and the admitter add it.
    index_of = {"fieldPath": f"metadata.annotations['{INDEX_LABEL}']"}
    template["spec"]["containers"][0]["env"].append(
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": index_of}}
    )
    template["spec"]["nodeName"] = f"node{index}"
    template["metadata"]["annotations"] |= {INDEX_LABEL: str(index), Names().leave: leave}
    return lay_out(root, template, config_map(request, packed.archive, None), python=python)
