"""What was observed, judged by data: findings, coverage, verdict, what to do next."""
