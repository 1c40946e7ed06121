"""The write path that agents and shuffles share: batcher, packing, uploading."""
