"""Ripcord: lets an agent go on, and even start, while the control plane is away."""
