"""Caches of objects that were read or written lately."""
