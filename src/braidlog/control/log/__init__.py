"""The log: sequencer, producers, extent index, retention, sweeper, feed."""
