"""`braid produce` and `braid consume`."""
