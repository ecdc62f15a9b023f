"""Errors of the wire protocol: a `WireError` closes the peer's connection and affects no other. [P]"""

from __future__ import annotations

from service.base.errors import FirnError


class WireError(FirnError):
    """The peer's bytes are not the protocol: framing or meaning is lost, so the connection is closed."""


class FrameError(WireError):
    """The four-byte length in front of a frame is negative or above the limit."""


class MalformedMessage(WireError):
    """A header or body does not parse under the version it claims."""


class UnsupportedRequest(WireError):
    """An unknown API key, or a version of a known API outside the served range."""


class Unanswered(WireError):
    """The request is valid, but this node stops before it has a response to it."""


class UnsupportedVersion(FirnError):
    """A peer does not serve the API, or no version of it that can carry the request. Nothing was sent."""
