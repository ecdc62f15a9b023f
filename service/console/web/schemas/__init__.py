"""Decoding of keys and values by schemas, in a process of its own: both are what others wrote."""
