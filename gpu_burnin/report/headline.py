"""The sentence at the top of the page: what came out, and for which GPUs or links."""

from __future__ import annotations

from gpu_burnin.report.model import Report
from gpu_burnin.report.said import failed_links
from gpu_burnin.report.units import gpu_name


def headline(report: Report, took: str) -> str:
    """What came out, in one sentence; `took` is the time of the run as a text."""
    gpus = report["gpus"]
    count = f"{len(gpus)} GPU" + "s" * (len(gpus) != 1)
    if report["verdict"] == "PASS":
        return f"No fault was seen on {count} in {took}."
    if report["verdict"] == "FAIL":
        return _failed(report, count)
    if not gpus:
        return "No GPU was tested, so this run says nothing of the node."
    if {reason["code"] for reason in report["reasons"]} == {"INJECTED"}:
        return f"Faults were injected on purpose, so this run says nothing of the {count}."
    unsure = [gpu_name(report, gpu["uuid"]) for gpu in gpus if gpu["verdict"] != "PASS"]
    if not unsure:
        whom = f"the node, although its {count} passed"
    elif len(unsure) < len(gpus):
        whom = f"{listed(unsure)}, out of {count}"
    else:
        whom = f"the {count} either"
    return f"No fault was proved, but this run cannot vouch for {whom}. The reasons are below."


def _failed(report: Report, count: str) -> str:
    gpus = report["gpus"]
    bad = [gpu_name(report, gpu["uuid"]) for gpu in gpus if gpu["verdict"] == "FAIL"]
    links = failed_links(report)
    if links and len(bad) < len(gpus):
        named = listed([*bad, *links])
        return f"{named[:1].upper()}{named[1:]} failed, out of {count}."
    if not bad:
        return "The node failed; no single GPU is to blame."
    if len(bad) == len(gpus):
        return f"{'All ' if len(gpus) > 1 else ''}{count} failed."
    return f"{listed(bad)} failed, out of {count}."


def listed(names: list[str]) -> str:
    """Names as people list them: "GPU 1, GPU 2 and GPU 5"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1] if names else "")))
