"""The pages."""

from __future__ import annotations

from tools.dashboards.model import Page
from tools.dashboards.pages import burnin, control_plane, fleet, job, node

PAGES: tuple[Page, ...] = (fleet.PAGE, node.PAGE, job.PAGE, burnin.PAGE, control_plane.PAGE)
