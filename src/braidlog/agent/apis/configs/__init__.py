"""Configs of topics, groups and agents, and the quotas of clients."""
