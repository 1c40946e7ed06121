"""The processes of Braidlog: assembled, supervised, and embedded.

They are assembled from settings, and other programs can embed them.
"""
