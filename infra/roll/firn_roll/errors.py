"""Error of a roll that stops before its end."""

from __future__ import annotations


class RollError(Exception):
    """Message for the operator. Finished steps are in the journal, and the next run continues after them."""
