"""What requests and bytes cost: price book, and from usage to a bill. Pure."""
