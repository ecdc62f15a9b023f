"""The driver's part of a read: what the bucket holds, which of it is wanted, and the splits that cover it."""
