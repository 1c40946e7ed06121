"""Consumer groups of either protocol: coordinator and committed offsets."""
