"""How a run is carried out: plan, supervisor, workers, messages, deadlines, journal."""
