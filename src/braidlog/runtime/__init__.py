"""What is injected everywhere: time, randomness, settings, limits, RPC, logs.

Metrics belong here, too.
"""
