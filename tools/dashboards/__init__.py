"""The dashboards of Grafana, as code: `python -m tools.dashboards` writes them into the role fleet_monitoring.

`model` says what a page is, `pages` has the pages, `limits` takes the alerts' thresholds from the rules, and `grafana`
makes Grafana's JSON of all that.
"""
