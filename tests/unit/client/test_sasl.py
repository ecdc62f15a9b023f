"""PLAIN and SCRAM against published exchanges and hostile servers, and SASL's two requests."""

from __future__ import annotations

import struct

import pytest

from service.base.errors import ConfigError
from service.client import sasl
from service.wire.errors import MalformedMessage


def test_scram_is_as_in_rfc_7677() -> None:
    nonce = "rOprNGfwEbeRWgbNEkqO"
    login = sasl.login("SCRAM-SHA-256", "user", "pencil", nonce)
    assert login.first() == f"n,,n=user,r={nonce}".encode()
    both = nonce + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    answer = login.answer(f"r={both},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    assert answer == f"c=biws,r={both},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    assert login.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize(
    ("first", "final", "kind", "reason"),
    [
        (b"r=nonceX,s=c2FsdA==,i=4096", b"v=AAAA", ConfigError, "does not know the password"),
        (b"r=nonceX,s=c2FsdA==,i=4096", b"e=invalid-proof", ConfigError, "refuses the login: invalid-proof"),
        (b"r=other,s=c2FsdA==,i=4096", b"", ConfigError, "does not go on from ours"),
        (b"r=nonce,s=c2FsdA==,i=4096", b"", ConfigError, "does not go on from ours"),
        (b"r=nonceX,s=c2FsdA==,i=1", b"", ConfigError, "asks for 1 SCRAM iterations"),
        (b"r=nonceX,s=c2FsdA==,i=999999999", b"", ConfigError, "999999999 SCRAM iterations"),
        (b"r=nonceX,s=c2FsdA==,i=many", b"", MalformedMessage, "no number of iterations"),
        (b"r=nonceX,s=?,i=4096", b"", MalformedMessage, "no s= in base64"),
        (b"\xff", b"", MalformedMessage, "SCRAM"),
        (b"nothing", b"", MalformedMessage, "SCRAM"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_refused(
    first: bytes, final: bytes, kind: type[Exception], reason: str
) -> None:
    login = sasl.login("SCRAM-SHA-512", "us=e,r", "pencil", "nonce")
    assert login.first() == b"n,,n=us=3De=2Cr,r=nonce"
    with pytest.raises(kind, match=reason):
        list(map(login.answer, (first, final)))


def test_plain_says_it_all_at_once() -> None:
    login = sasl.login("PLAIN", "user", "pencil", "")
    assert login.first() == b"\0user\0pencil"
    assert login.answer(b"") is None


def test_sasl_frames_are_kafkas() -> None:
    assert (
        sasl.handshake_frame(7, "me", "PLAIN")[4:]
        == struct.pack(">hhih", 17, 1, 7, 2) + b"me" + b"\0\x05PLAIN"
    )
    assert sasl.authenticate_frame(8, "", b"xy")[4:] == struct.pack(">hhihi", 36, 1, 8, 0, 2) + b"xy"
    offered = struct.pack(">ihi", 7, 33, 1) + b"\0\x05PLAIN"
    assert sasl.parse_handshake(offered, 7) == (33, ["PLAIN"])
    done = struct.pack(">ihhi", 8, 58, -1, 1) + b"z" + bytes(8)
    assert sasl.parse_authenticate(done, 8) == (58, None, b"z", 0)
    for answer_, number in ((done, 9), (done[:9], 8)):
        with pytest.raises(MalformedMessage):
            sasl.parse_authenticate(answer_, number)
    with pytest.raises(MalformedMessage):
        sasl.parse_handshake(struct.pack(">ihi", 7, 0, 1 << 30), 7)
