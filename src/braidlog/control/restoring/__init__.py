"""Makes the metadata again from the bucket, and moves it from one kind to another."""
