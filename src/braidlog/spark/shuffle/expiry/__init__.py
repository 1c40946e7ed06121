"""Deletes old batches and states, unless an application may still read them.

Only a running application may.
"""
