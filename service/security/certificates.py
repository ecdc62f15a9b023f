"""Facts of X.509 certificates that Firn itself looks at: subject, validity, alternative names. [P]

Signatures, purposes and chains are OpenSSL's business. This reads what is shown and compared, from a
certificate that OpenSSL has accepted or that the operator has configured.
"""

from __future__ import annotations

import calendar
import re
from typing import Final, NamedTuple

from service.security.der import (
    BOOLEAN,
    GENERALIZED_TIME,
    INTEGER,
    OBJECT_ID,
    OCTET_STRING,
    SEQUENCE,
    UTC_TIME,
    DerError,
    DerValue,
    read_one,
    read_values,
)
from service.security.distinguished_names import distinguished_name

_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_SUBJECT_ALT_NAME: Final = bytes.fromhex("551d11")
_SOON_DAYS: Final = 7
_TIME: Final = re.compile(r"(\d{2}|\d{4})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})Z", re.ASCII)


class Certificate(NamedTuple):
    """One certificate. Times are seconds since 1970; names as `distinguished_name` writes them."""

    subject: bytes
    """DER of the subject"""
    not_before_s: int
    not_after_s: int
    alternative_names: frozenset[bytes]
    """DER of each of the subject's alternative names"""

    @property
    def name(self) -> str:
        return distinguished_name(self.subject)


def ending(days: float) -> str | None:
    """Return the words for a certificate that has so many days left, if they are few.

    >>> ending(3.14), ending(-1), ending(7)
    ('ends in 3.1 days', 'has ended', None)
    """
    if days < 0:
        return "has ended"
    return f"ends in {days:.1f} days" if days < _SOON_DAYS else None


def read_certificate(data: bytes) -> Certificate:
    """Return the facts of a DER certificate. Raises `DerError`."""
    outer = [*read_values(read_one(data, SEQUENCE, "certificate").content)]
    if not outer:
        raise DerError("an empty certificate")
    fields = [*read_values(outer[0].expect(SEQUENCE, "signed part of a certificate").content)]
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    if len(fields) < 6:
        raise DerError(f"a certificate of {len(fields)} fields")
    fields[0].expect(INTEGER, "serial number")
    times = [*read_values(fields[3].expect(SEQUENCE, "validity").content)]
    if len(times) != 2:
        raise DerError(f"a validity of {len(times)} times")
    names: frozenset[bytes] = frozenset()
    for field in fields[6:]:
        if field.tag == _EXTENSIONS:
            names = _alternative_names(read_one(field.content, SEQUENCE, "extensions").content)
    subject = fields[4].expect(SEQUENCE, "subject").whole
    return Certificate(subject, _seconds(times[0]), _seconds(times[1]), names)


def _alternative_names(extensions: bytes) -> frozenset[bytes]:
    for extension in read_values(extensions):
        parts = [*read_values(extension.expect(SEQUENCE, "extension").content)]
        if len(parts) < 2:
            raise DerError(f"an extension of {len(parts)} fields")
        if parts[0].expect(OBJECT_ID, "type of an extension").content == _SUBJECT_ALT_NAME:
            value = parts[2] if parts[1].tag == BOOLEAN and len(parts) > 2 else parts[1]
            inner = read_one(value.expect(OCTET_STRING, "extension").content, SEQUENCE, "alternative names")
            return frozenset(one.whole for one in read_values(inner.content))
    return frozenset()


def _seconds(time: DerValue) -> int:
    """Return the time as RFC 5280 allows it: to the second, in UTC; two digits of a year are 1950 to 2049."""
    if time.tag not in (UTC_TIME, GENERALIZED_TIME):
        raise DerError(f"a time with tag {time.tag:#04x}")
    found = _TIME.fullmatch(time.content.decode("ascii", "replace"))
    if found is None or len(found[1]) != (2 if time.tag == UTC_TIME else 4):
        raise DerError("a time that is none")
    year, *rest = map(int, found.groups())
    if time.tag == UTC_TIME:
        year += 2000 if year < 50 else 1900
    try:
        return calendar.timegm((year, *rest))
    except ValueError as e:
        raise DerError(f"a time that is none: {e}") from e
