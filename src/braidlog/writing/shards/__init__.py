"""How the shards of an agent share their uploads, through shared memory."""
