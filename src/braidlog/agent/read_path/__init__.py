"""The read path: waiting fetches, fetch sessions, and reading records.

Records come from the cache, the zone or the store.
"""
