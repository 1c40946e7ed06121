"""When uploads happen, and how many at once. Pure: time and counters come in, decisions go out."""
