"""The task's part of a read: downloads, decoding, Arrow. Knows the splits that a plan made, no more."""
