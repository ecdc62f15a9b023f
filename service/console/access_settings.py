"""Settings of access to an HTTP listener. [P]"""

from __future__ import annotations

from dataclasses import dataclass

from service.config.passwords import Password


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Files of an HTTP listener, with the option or key that names each; None where it is not used.

    `name`: the listener's. `certificate`: PEM, the chain, and the private key unless `key` is its file.
    `interval_s` passes between two looks at the files, 0: they are read once. `timeout_s`: for a handshake.
    """

    name: str
    certificate: str | None = None
    certificate_option: str = ""
    key: str | None = None
    key_password: Password | None = None
    token: str | None = None
    token_option: str = ""
    interval_s: float = 10.0
    timeout_s: float = 10.0
    most_handshakes: int = 32

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"
