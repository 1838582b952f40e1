"""Teams and their jobs as people see them: quotas and who waits (`muster teams`), and why a job waits or died."""
