"""Streams: offsets that Spark keeps, the step to the next ones, and the reader that Spark holds."""
