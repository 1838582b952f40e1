"""Is the gate in force on one API server, and did somebody go round it? Asked on its host, told to the monitoring."""
