"""Assignors: who is to have which partitions. Pure functions in steps; equal input gives equal output."""
