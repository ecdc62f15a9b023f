"""Security of a client's connections: TLS by PEM files, and SASL credentials."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from service.client import sasl
from service.network.tls.dialing import ClientTls


@dataclass(frozen=True, slots=True)
class Credentials:
    """Name and secret of a client, for one of `sasl.MECHANISMS`. The password is in no ``repr``.

    `new_nonce` returns fresh randomness that cannot be guessed, in printable ASCII without commas.
    """

    mechanism: str
    username: str
    password: str = field(repr=False)
    new_nonce: Callable[[], str] = field(repr=False)

    def login(self) -> sasl.Login:
        """Return a login for one connection."""
        return sasl.login(self.mechanism, self.username, self.password, self.new_nonce())


class Security(NamedTuple):
    """TLS, a login, both or neither."""

    tls: ClientTls | None = None
    credentials: Credentials | None = None


PLAINTEXT: Final = Security()


def tls_context(
    ca_file: str | None = None,
    certificate_file: str | None = None,
    key_file: str | None = None,
    key_password: str | None = None,
    *,
    checks_hostname: bool = True,
) -> ClientTls:
    """Return a client's TLS; without `ca_file` it trusts the system's certificates.

    `OSError` (`ssl.SSLError` is one) for files that are missing or not PEM.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.check_hostname = checks_hostname
    if certificate_file is not None:
        # Without a function OpenSSL would prompt on the terminal.
        context.load_cert_chain(certificate_file, key_file, password=lambda: key_password or "")
    return ClientTls(context)
