"""Names of the files of a run that people and programs read. Standard library only."""

from collections.abc import Mapping

REPORT = "report.json"
REPORT_TEXT = "report.txt"
REPORT_HTML = "report.html"
JUNIT = "junit.xml"
METRICS = "metrics.prom"
# Samples over time.
SERIES = "series.json"
# The forms of one report beside its page: name, and who reads it.
FORMS: Mapping[str, str] = {
    REPORT: "all of it, for programs",
    REPORT_TEXT: "one screen of text",
    JUNIT: "JUnit XML, for CI",
    METRICS: "OpenMetrics, for node_exporter",
    SERIES: "the samples over time",
}
