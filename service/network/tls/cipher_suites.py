"""Cipher suites by IANA's names (``ssl.cipher.suites``), and OpenSSL's names of the same numbers. [P]

Python before 3.15 cannot choose among the suites of TLS 1.3: a list that leaves one of them out while TLS 1.3
is enabled is refused, for it would be enabled all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from service.base.errors import ConfigError

KEY: Final = "ssl.cipher.suites"
TLS_12: Final = "TLSv1.2"
TLS_13: Final = "TLSv1.3"
_TLS_13_SUITES: Final = {
    "TLS_AES_128_GCM_SHA256": 0x1301,
    "TLS_AES_256_GCM_SHA384": 0x1302,
    "TLS_CHACHA20_POLY1305_SHA256": 0x1303,
}
NUMBERS: Final[Mapping[str, int]] = {
    **_TLS_13_SUITES,
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": 0xC02B,
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": 0xC02C,
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": 0xC02F,
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": 0xC030,
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCA8,
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCA9,
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCAA,
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": 0x009E,
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": 0x009F,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CCM": 0xC0AC,
    "TLS_ECDHE_ECDSA_WITH_AES_256_CCM": 0xC0AD,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": 0xC023,
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384": 0xC024,
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": 0xC027,
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": 0xC028,
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256": 0x0067,
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": 0x006B,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": 0xC009,
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": 0xC00A,
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": 0xC013,
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": 0xC014,
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA": 0x0033,
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA": 0x0039,
    "TLS_RSA_WITH_AES_128_GCM_SHA256": 0x009C,
    "TLS_RSA_WITH_AES_256_GCM_SHA384": 0x009D,
    "TLS_RSA_WITH_AES_128_CBC_SHA256": 0x003C,
    "TLS_RSA_WITH_AES_256_CBC_SHA256": 0x003D,
    "TLS_RSA_WITH_AES_128_CBC_SHA": 0x002F,
    "TLS_RSA_WITH_AES_256_CBC_SHA": 0x0035,
}
"""Suites that encrypt and authenticate, by name."""


class ChosenSuites(NamedTuple):
    """Versions of the protocol, and OpenSSL's list of suites for TLS 1.2; None: its own choice."""

    protocols: tuple[str, ...]
    openssl: str | None


def choose_suites(
    names: Sequence[str], protocols: Iterable[str], openssl_names: Mapping[int, str]
) -> ChosenSuites:
    """Return the protocols and suites for a list of names. Raises `ConfigError`.

    `openssl_names`: those that this OpenSSL has, by number.
    """
    enabled = tuple(protocols)
    if not names:
        return ChosenSuites(enabled, None)
    for name in names:
        if NUMBERS.get(name) not in openssl_names:
            why = "is not served here" if name in NUMBERS else "is unknown, or not secure"
            raise ConfigError(f"{KEY}: {name} {why}")
    missing = sorted(_TLS_13_SUITES.keys() - {*names})
    if TLS_13 in enabled and missing:
        raise ConfigError(
            f"{KEY}: {', '.join(missing)} cannot be left out while TLSv1.3 is enabled; "
            f"add them, or set ssl.enabled.protocols=TLSv1.2"
        )
    older = [openssl_names[NUMBERS[name]] for name in names if name not in _TLS_13_SUITES]
    if older:
        return ChosenSuites(enabled, ":".join(older))
    if TLS_13 not in enabled:
        raise ConfigError(f"{KEY}: no suite of TLSv1.2 is in the list, and TLSv1.3 is not enabled")
    return ChosenSuites(tuple(one for one in enabled if one != TLS_12), None)
