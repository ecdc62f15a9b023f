"""Facts of certificates: what cryptography reads of them, this does; damaged ones are refused."""

from __future__ import annotations

import random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from service.security.certificates import read_certificate
from service.security.der import DerError
from tests.support.certificates import Authority

CA = Authority()


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


@pytest.mark.parametrize("hosts", [(), ("localhost",), ("a.example", "10.0.0.1", "::1")])
@pytest.mark.parametrize("days", [-2, 10, 20_000])
def test_subject_times_and_names_are_read(hosts: tuple[str, ...], days: int) -> None:
    issued = CA.issue("alice", hosts=hosts, days=days, starts_in_days=-5).certificate
    found = read_certificate(der(issued))
    assert found.name == "CN=alice"
    assert found.not_before_s == issued.not_valid_before_utc.timestamp()
    assert found.not_after_s == issued.not_valid_after_utc.timestamp()
    assert len(found.alternative_names) == len(hosts)
    if "localhost" in hosts:
        assert found.alternative_names == {b"\x82\x09localhost"}


def test_damaged_certificates_are_refused_or_read_and_nothing_else() -> None:
    chance = random.Random(35)
    whole = der(CA.issue("alice").certificate)
    for at in range(len(whole)):
        with pytest.raises(DerError):
            read_certificate(whole[:at])
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            read_certificate(bytes(damaged))
        except DerError:
            continue
