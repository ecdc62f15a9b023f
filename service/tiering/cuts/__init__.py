"""Cuts: one moment of the whole cluster in the bucket, from which it can be restored."""
