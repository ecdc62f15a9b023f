"""Reading in a task: downloads, decoding, conversion to Arrow. Knows the splits of a plan and no more."""
