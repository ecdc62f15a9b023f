"""UUIDs in Kafka's text form, as in its files and tools. [P]"""

from __future__ import annotations

import base64
import binascii
from uuid import UUID


def encode_uuid(value: UUID) -> str:
    """Return a UUID in Kafka's text form: URL-safe base64, 22 characters.

    >>> encode_uuid(UUID(int=1))
    'AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> UUID:
    """Parse Kafka's text form of a UUID. Raises `ValueError`."""
    try:
        return UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise ValueError(f"not an id: {text!r}") from None
