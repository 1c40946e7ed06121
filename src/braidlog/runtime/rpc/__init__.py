"""Remote calls: many at a time over one connection, TCP or a Unix socket."""
