"""The durable state of the control plane: the seam, and the stores behind it."""
