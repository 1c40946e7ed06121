"""The store seam and the object format."""
