"""The cluster as a whole: API versions, agents, quorum and features."""
