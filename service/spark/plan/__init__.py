"""Planning on the driver: the archive's state in the bucket, its wanted part, and splits that cover it."""
