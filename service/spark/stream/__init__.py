"""Structured Streaming: offsets, limits and plans of micro-batches."""
