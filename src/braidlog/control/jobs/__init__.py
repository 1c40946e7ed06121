"""Jobs in the control plane: planned, leased, and swapped into the index."""
