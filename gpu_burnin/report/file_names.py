"""Names of the files of a run that people and programs read. Standard library only."""

REPORT = "report.json"
REPORT_TEXT = "report.txt"
REPORT_HTML = "report.html"
JUNIT = "junit.xml"
METRICS = "metrics.prom"
# Samples over time.
SERIES = "series.json"
