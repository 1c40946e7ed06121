"""What was read or written lately, kept in memory."""
