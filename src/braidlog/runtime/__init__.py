"""What is injected into everything: time, randomness, settings, limits, RPC, metrics, logs."""
