"""A page as Grafana's JSON (the builders of grafana-foundation-sdk)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import stat, statetimeline, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.dashboard import Row as RowBuilder
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

from tools.dashboards.limits import Limit, limit
from tools.dashboards.model import Kind, Page, Panel, Variable

TAG = "muster"
_DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
# Columns of a page.
_WIDTH = 24
_HEIGHTS = {Kind.STAT: 5, Kind.LINES: 8, Kind.AREAS: 8, Kind.STATES: 8}
_Panel: TypeAlias = stat.Panel | statetimeline.Panel | timeseries.Panel


def to_json(page: Page) -> str:
    """The text of a page's file."""
    builder = (
        Dashboard(page.title)
        .uid(page.uid)
        .description(page.description)
        .tags([TAG])
        .readonly()
        .refresh("30s")
        .time(page.since, "now")
        .timezone("utc")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(
            DashboardLink("Muster")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .keep_time(True)
        )
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in page.variables:
        builder.with_variable(_variable(variable))
    for mark in page.marks:
        builder.annotation(
            AnnotationQuery()
            .name(mark.name)
            .datasource(_DATASOURCE)
            .enable(True)
            .icon_color(mark.colour)
            .expr(mark.expr)
        )
    numbers = itertools.count(1)
    top = 0
    for row in page.rows:
        builder.with_row(RowBuilder(row.title).id(next(numbers)).grid_pos(dashboard.GridPos(h=1, w=_WIDTH, x=0, y=top)))
        places, top = _places(row.panels, top + 1)
        for panel, place in zip(row.panels, places, strict=True):
            builder.with_panel(_panel(panel).id(next(numbers)).grid_pos(place))
    document = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    for annotation, mark in zip(document["annotations"].get("list", []), page.marks, strict=True):
        # What the SDK does not know: the value is the time, and these words stand beside it.
        annotation |= {"useValueForTime": True, "titleFormat": mark.title, "step": "60s"}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _places(panels: Sequence[Panel], top: int) -> tuple[list[dashboard.GridPos], int]:
    """Where each panel stands, beside the one before while there is room; and where the next row begins."""
    places: list[dashboard.GridPos] = []
    left = bottom = 0
    for panel in panels:
        if left + panel.width > _WIDTH:
            left, top = 0, bottom
        places.append(dashboard.GridPos(h=_HEIGHTS[panel.kind], w=panel.width, x=left, y=top))
        left, bottom = left + panel.width, max(bottom, top + _HEIGHTS[panel.kind])
    return places, bottom


def _variable(variable: Variable) -> QueryVariable:
    return (
        QueryVariable(variable.name)
        .label(variable.label)
        .description(variable.description)
        .datasource(_DATASOURCE)
        .query(variable.query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(variable.many)
        .include_all(False)
    )


def _panel(panel: Panel) -> _Panel:
    made = _drawn(panel)
    made.title(panel.title).description(panel.description).unit(panel.unit).datasource(_DATASOURCE)
    made.no_value("nothing")
    if panel.kind is Kind.STATES:
        made.thresholds(_steps([("red", None), ("green", 1.0)]))
    elif panel.alert is None:
        made.thresholds(_steps([("text" if panel.kind is Kind.STAT else "green", None)]))
    else:
        made.thresholds(_steps(_coloured(panel, panel.alert)))
    for number, query in enumerate(panel.queries):
        target = Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        made.with_target(target.instant() if panel.kind is Kind.STAT else target.range())
    return made


def _coloured(panel: Panel, alert: str) -> list[tuple[str, float | None]]:
    """Red where the alert would be raised. Grafana colours from the step on: of what is counted, more than 0 is 1."""
    found = limit(alert) if not panel.counted else Limit(panel.queries[0].expr, 0.0, below=False)
    if found.below:
        return [("red", None), ("green", found.value)]
    return [("green", None), ("red", found.value or 1.0)]


def _drawn(panel: Panel) -> _Panel:
    """The panel of its kind, without what all kinds have."""
    if panel.kind is Kind.STAT:
        mode = common.BigValueTextMode.NAME if panel.named else common.BigValueTextMode.AUTO
        return (
            stat.Panel()
            .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
            .text_mode(mode)
            .color_mode(common.BigValueColorMode.VALUE)
            .graph_mode(common.BigValueGraphMode.NONE)
        )
    if panel.kind is Kind.STATES:
        return statetimeline.Panel().legend(_legend()).show_value(common.VisibilityMode.NEVER)
    drawn = timeseries.Panel().legend(_legend()).fill_opacity(0)
    if panel.alert is not None:
        style = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.LINE)
        drawn.thresholds_style(style)
    if panel.kind is Kind.AREAS:
        drawn.fill_opacity(40).stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    return drawn


def _legend() -> common_builders.VizLegendOptions:
    return (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _steps(steps: list[tuple[str, float | None]]) -> ThresholdsConfig:
    made = [dashboard.Threshold(color=colour, value=value) for colour, value in steps]
    return ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(made)
