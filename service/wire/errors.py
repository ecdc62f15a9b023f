"""What a peer can get wrong on the wire; it costs that connection, and nobody else anything. [P]"""

from __future__ import annotations

from service.base.errors import FirnError


class WireError(FirnError):
    """The peer's bytes are not the protocol. The connection is closed: framing or meaning is lost."""


class FrameError(WireError):
    """The four-byte length in front of a frame is negative or above the limit."""


class MalformedMessage(WireError):
    """A header or body does not parse under the version it claims."""


class UnsupportedRequest(WireError):
    """Unknown API key, or a version of a known API outside the served range."""


class Unanswered(WireError):
    """Nothing is wrong with the request, but this node ends before there is an answer."""


class UnsupportedVersion(FirnError):
    """A peer that we ask serves the API not at all, or in no version that will do. Nothing was sent."""
