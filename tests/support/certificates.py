"""Certificates for tests, made in the process: authorities, servers, clients, and wrong ones."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    """A key with its certificate, and the certificates above it."""

    key: Any
    certificate: x509.Certificate
    above: tuple[x509.Certificate, ...] = ()

    @property
    def pem(self) -> str:
        """The certificate alone."""
        return pem_of(self.certificate)

    @property
    def chain_pem(self) -> str:
        return "".join(pem_of(one) for one in (self.certificate, *self.above))

    def key_pem(self, password: str | None = None) -> str:
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return str(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), "ascii")

    def write(self, path: Path, password: str | None = None) -> str:
        """Write key and chain into one PEM file; return its name."""
        path.write_text(self.key_pem(password) + self.chain_pem)
        return str(path)

    def write_pkcs12(self, path: Path, password: str) -> str:
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"own", self.key, self.certificate, self.above, BestAvailableEncryption(password.encode())
            )
        )
        return str(path)


def pem_of(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def name_of(common_name: str, *more: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    parts = [(NameOID.COMMON_NAME, common_name), *more]
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


class Authority:
    """A certificate authority."""

    def __init__(
        self, name: str = "Test CA", *, above: Authority | None = None, is_ca: bool = True, days: int = 30
    ) -> None:
        self.issued = self._issue(name_of(name), above, days=days, is_ca=is_ca, hosts=())

    @property
    def pem(self) -> str:
        return self.issued.pem

    def write(self, path: Path) -> str:
        path.write_text(self.pem)
        return str(path)

    def issue(
        self,
        name: str | x509.Name = "localhost",
        *,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        days: float = 10,
        starts_in_days: float = -1,
        kind: str = "ec",
    ) -> Issued:
        """A certificate for a server or a client."""
        subject = name_of(name) if isinstance(name, str) else name
        return self._issue(
            subject, self, days=days, is_ca=False, hosts=hosts, starts=starts_in_days, kind=kind
        )

    def _issue(
        self,
        subject: x509.Name,
        above: Authority | None,
        *,
        days: float,
        is_ca: bool,
        hosts: Sequence[str],
        starts: float = -1,
        kind: str = "ec",
    ) -> Issued:
        key: Any = (
            ec.generate_private_key(ec.SECP256R1())
            if kind == "ec"
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )
        issuer = subject if above is None else above.issued.certificate.subject
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=starts))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(one) for one in hosts]), critical=False
            )
        signer = key if above is None else above.issued.key
        upper = () if above is None else (above.issued.certificate, *above.issued.above)
        roots = tuple(one for one in upper if one.issuer != one.subject)
        return Issued(key, builder.sign(signer, hashes.SHA256()), roots)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def trust_pkcs12(path: Path, password: str, *certificates: x509.Certificate) -> str:
    """Write a trust store; return its name."""
    stored = [pkcs12.PKCS12Certificate(one, f"ca{at}".encode()) for at, one in enumerate(certificates)]
    path.write_bytes(pkcs12.serialize_java_truststore(stored, BestAvailableEncryption(password.encode())))
    return str(path)
