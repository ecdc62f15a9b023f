"""What a roll ends with when it does not come to its end."""

from __future__ import annotations


class RollError(Exception):
    """In words for whoever runs it. What was done is noted, and the next run goes on from there."""
