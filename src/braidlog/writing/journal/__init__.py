"""The journaled half of the write path.

Records are acknowledged when they are stored, and sequenced after that.
"""
