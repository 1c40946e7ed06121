"""Commands that run servers: `braid up`, `braid agent`, `braid control`."""
