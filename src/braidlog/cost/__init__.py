"""The cost of requests and bytes: a price book, and bills for usage. Pure."""
