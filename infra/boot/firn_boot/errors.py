"""The one kind of error that a step ends with."""

from __future__ import annotations


class BootError(Exception):
    """A step that failed, in words for whoever reads the machine's log."""
