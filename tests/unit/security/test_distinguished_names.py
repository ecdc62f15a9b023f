"""Names of subjects are Java's, letter for letter; other bytes are refused."""

from __future__ import annotations

import pytest

from service.security.der import DerError
from service.security.distinguished_names import distinguished_name
from tests.support.subjects import attribute, golden, subject, tlv


@pytest.mark.parametrize(("der", "name"), golden("names.json"))
def test_a_name_is_written_as_java_writes_it(der: str, name: str) -> None:
    assert distinguished_name(bytes.fromhex(der)) == name


def test_a_subject_is_written_from_its_last_part() -> None:
    der = subject(
        [attribute("2.5.4.6", b"UK")], [attribute("2.5.4.10", b"Acme, Inc.")], [attribute("2.5.4.3", b"a")]
    )
    assert distinguished_name(der) == "CN=a,O=Acme\\, Inc.,C=UK"


@pytest.mark.parametrize(
    "der",
    [
        b"",
        b"\x30",
        b"\x30\x80\x00\x00",
        b"\x30\x84\xff\xff\xff\xff",
        subject() + b"\0",
        tlv(0x31, b""),
        tlv(0x30, tlv(0x30, b"")),
        subject([tlv(0x30, b"")]),
        subject([tlv(0x30, tlv(0x06, b"\x55\x84") + tlv(0x0C, b"x"))]),
        subject([tlv(0x30, tlv(0x0C, b"x") + tlv(0x0C, b"x"))]),
        subject([tlv(0x30, tlv(0x06, b"\xff" * 5000 + b"\x01") + tlv(0x0C, b"x"))]),
        subject([attribute("2.5.4.3", b"x")])[:-1],
    ],
)
def test_bytes_that_are_no_name_are_refused(der: bytes) -> None:
    with pytest.raises(DerError):
        distinguished_name(der)
