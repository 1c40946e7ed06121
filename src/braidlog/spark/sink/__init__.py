"""Writes DataFrames to topics: routes, packs, uploads and commits."""
