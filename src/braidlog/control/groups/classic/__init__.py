"""Consumer groups whose members assign partitions: the classic protocol."""
