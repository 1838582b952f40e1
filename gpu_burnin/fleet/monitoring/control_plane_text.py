"""The control plane as text: what needs a person, then each part of it."""

from __future__ import annotations

from gpu_burnin.fleet.cluster.times import ago
from gpu_burnin.fleet.monitoring.control_plane import JOBS, ControlPlane
from gpu_burnin.system.prose import STANDARD_WIDTH, table_with_text, wrap

# Certificates that are told; all are in the JSON.
_MOST_CERTIFICATES = 12


def render(found: ControlPlane, width: int = STANDARD_WIDTH) -> str:
    """Lines of at most `width` characters, but for longer words."""
    lines = [line for text in found.problems for line in wrap(f"MISSING: {text}", width, rest="  ")]
    if not found.source:
        return "\n".join(lines) + "\n"
    sick = found.sick
    lines += [f"Control plane by {found.source}: {f'{len(sick):,} to mend' if sick else 'nothing to mend'}"]
    lines += [line for text in sick for line in wrap(f"- {text}", width, rest="  ")]
    hosts = [("part", "host", "")]
    hosts += [(JOBS[part.kind], part.host, "answers" if part.up else "DOES NOT ANSWER") for part in found.parts]
    lines += ["", *table_with_text(hosts, width)]
    if found.members:
        rows = [("etcd", "leader", "database", "of quota")]
        for one in found.members:
            share = one.size_bytes / one.quota_bytes if one.size_bytes is not None and one.quota_bytes else None
            size = "?" if one.size_bytes is None else f"{one.size_bytes / (1 << 30):.2f} GiB"
            leads = "?" if one.leads is None else "leads" if one.leads else "follows"
            rows.append((one.host, leads, size, "?" if share is None else f"{share:.1%}"))
        lines += ["", *table_with_text(rows, width)]
    snapshots = [("snapshots of", "newest", "")]
    snapshots += [(one.cluster, f"{ago(one.age_s)} ago", "LATE" if one.late else "") for one in found.snapshots]
    lines += ["", *(table_with_text(snapshots, width) if found.snapshots else ["No snapshots of etcd are made."])]
    if found.certificates:
        rows = [("days left", "ends", "host", "certificates")]
        for certificate in found.certificates[:_MOST_CERTIFICATES]:
            days = "?" if certificate.days_left is None else f"{certificate.days_left:,.0f}{' *' * certificate.due}"
            rows.append((days, certificate.expires or "-", certificate.host, certificate.file))
        lines += ["", *table_with_text(rows, width)]
        if len(found.certificates) > _MOST_CERTIFICATES:
            lines.append(f"and {len(found.certificates) - _MOST_CERTIFICATES:,} that end later: --json has them")
    return "\n".join(lines) + "\n"
