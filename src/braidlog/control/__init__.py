"""The control plane: catalog, sequencer, extent index, change feed, producers, groups, agents."""
