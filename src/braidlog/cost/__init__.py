"""What requests and bytes cost: price book, analytical model, meter to USD. Pure."""
