"""The write path: batch, order, pack, upload."""
