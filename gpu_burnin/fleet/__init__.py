"""Controller side: reaching many hosts, what they report, what happened to them, repair."""

# Folder of the hosts' newest reports in a fleet's state, as REPORTS/HOST/report.json.
REPORTS = "reports"
