"""TlsIdentity of a peer, as the TLS handshake has proved it. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.security.principal import ANONYMOUS, Principal


class TlsIdentity(NamedTuple):
    """Principal of a peer's certificate.

    `expires_s`: time of the event loop at which the peer's session ends with its certificate, None if it does
    not.
    """

    principal: Principal = ANONYMOUS
    expires_s: float | None = None


NOBODY: Final = TlsIdentity()
"""TlsIdentity of a peer without a certificate."""
