"""Reads topics into DataFrames: plans on the driver, reads in tasks.

The driver plans offsets; tasks read extents.
"""
