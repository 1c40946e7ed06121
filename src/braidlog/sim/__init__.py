"""Braidlog under virtual time: real agents and a real control plane, simulated time, network, store and failures."""
