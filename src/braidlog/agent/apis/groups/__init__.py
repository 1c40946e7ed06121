"""Consumer groups of both protocols: members, offsets, and the coordinator."""
