"""The agent's view of the cluster, and the agent's own place in it."""
