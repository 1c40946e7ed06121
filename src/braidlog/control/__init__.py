"""The control plane: catalog, sequencer, index, feed, producers, groups, agents."""
