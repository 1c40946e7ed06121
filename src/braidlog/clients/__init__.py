"""A running cluster as its clients see it: agents, control plane, topics, groups."""
