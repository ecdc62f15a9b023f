"""Readers of the bucket: from an offset or a time to bytes that are proved, cached and shared."""
