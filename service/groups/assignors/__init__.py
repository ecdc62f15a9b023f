"""Assignors, which distribute partitions to members: pure, deterministic functions in steps."""
