"""Physics: the time and memory of a plan, without torch."""
