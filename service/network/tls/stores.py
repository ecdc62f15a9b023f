"""Key and trust stores: PEM and PKCS12 by their content, whatever their type says; JKS is refused.

The rules on what may be set together are Kafka's (``DefaultSslEngineFactory``), and each refusal names the
key. Files are read once: what is compared, shown and given to OpenSSL is the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from service.base.disk import Disk, DiskError, os_error_text
from service.base.errors import ConfigError, CorruptionError
from service.base.extras import install_extra
from service.base.files import read_file
from service.base.printable import printable
from service.config.passwords import Password
from service.config.security import TlsSettings
from service.security.certificates import Certificate, read_certificate
from service.security.der import DerError

PEM: Final = "PEM"
MOST_STORE_BYTES: Final = 4 << 20
_JKS: Final = bytes.fromhex("feedfeed")
_JCEKS: Final = bytes.fromhex("cececece")
_DER_SEQUENCE: Final = b"\x30"
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,64})-----\s(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATES: Final = (b"CERTIFICATE", b"TRUSTED CERTIFICATE", b"X509 CERTIFICATE")


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A private key with its chain, this side's own certificate first."""

    pem: bytes = field(repr=False)
    """key and chain"""
    password: Password | None
    """of the key in `pem`"""
    certificates: tuple[bytes, ...] = field(repr=False)
    """DER of the chain"""
    source: str
    """what is named to the operator: a file or a key"""

    @property
    def own(self) -> Certificate:
        """The certificate that the peer is shown first."""
        return read_certificate(self.certificates[0])

    @property
    def not_after_s(self) -> int:
        """The end of the first certificate of the chain that ends, in seconds since 1970."""
        return min(read_certificate(one).not_after_s for one in self.certificates)


@dataclass(frozen=True, slots=True)
class TrustStore:
    """Certificates that are trusted as they are."""

    certificates: tuple[bytes, ...] = field(repr=False)
    """DER"""
    source: str


class StoreFiles(NamedTuple):
    """Content of the files of stores, as they are; None where no file is configured."""

    keys: bytes | None
    trust: bytes | None


class Stores(NamedTuple):
    """The stores of one listener; None where none is configured."""

    keys: KeyStore | None
    trust: TrustStore | None


def read_store_files(settings: TlsSettings, disk: Disk) -> StoreFiles:
    """Read the files. Raises `ConfigError`."""
    return StoreFiles(
        _read(settings.keystore_location, disk, "ssl.keystore.location"),
        _read(settings.truststore_location, disk, "ssl.truststore.location"),
    )


def open_stores(settings: TlsSettings, files: StoreFiles) -> Stores:
    """Return the stores that `files` and inline settings are. Raises `ConfigError`."""
    return Stores(_key_store(settings, files.keys), _trust_store(settings, files.trust))


def _key_store(settings: TlsSettings, data: bytes | None) -> KeyStore | None:
    path, password = _path(settings.keystore_location), settings.keystore_password
    key, chain = settings.keystore_key, settings.keystore_certificate_chain
    if key is not None:
        _refuse_unless_pem("ssl.keystore.key", "ssl.keystore.type", settings.keystore_type)
        if chain is None:
            raise ConfigError("ssl.keystore.key is set without ssl.keystore.certificate.chain")
        if path is not None:
            raise ConfigError("ssl.keystore.location and ssl.keystore.key exclude each other")
        if password is not None:
            raise ConfigError("ssl.keystore.password is not for PEM: set ssl.key.password")
        return _pem_key_store(
            key.reveal().encode(),
            chain.reveal().encode(),
            settings.key_password,
            "ssl.keystore.certificate.chain",
        )
    if chain is not None:
        raise ConfigError("ssl.keystore.certificate.chain is set without ssl.keystore.key")
    if path is None or data is None:
        if password is not None:
            raise ConfigError("ssl.keystore.password is set without ssl.keystore.location")
        return None
    if _is_pem(data):
        if password is not None:
            raise ConfigError("ssl.keystore.password is not for PEM: set ssl.key.password")
        return _pem_key_store(data, data, settings.key_password, str(path))
    if password is None:
        raise ConfigError(f"ssl.keystore.password is not set, and {path} is no PEM file")
    return _pkcs12_key_store(_pkcs12(data, path, password, "ssl.keystore.location"), path)


def _trust_store(settings: TlsSettings, data: bytes | None) -> TrustStore | None:
    path, password = _path(settings.truststore_location), settings.truststore_password
    if (inline := settings.truststore_certificates) is not None:
        _refuse_unless_pem("ssl.truststore.certificates", "ssl.truststore.type", settings.truststore_type)
        if path is not None:
            raise ConfigError("ssl.truststore.location and ssl.truststore.certificates exclude each other")
        if password is not None:
            raise ConfigError("ssl.truststore.password is not for PEM")
        source = "ssl.truststore.certificates"
        return TrustStore(_certificates(inline.reveal().encode(), source), source)
    if path is None or data is None:
        if password is not None:
            raise ConfigError("ssl.truststore.password is set without ssl.truststore.location")
        return None
    if _is_pem(data):
        if password is not None:
            raise ConfigError("ssl.truststore.password is not for PEM")
        return TrustStore(_certificates(data, str(path)), str(path))
    opened = _pkcs12(data, path, password, "ssl.truststore.location")
    found = [one.certificate for one in opened.additional_certs]
    if opened.cert is not None:
        found.append(opened.cert.certificate)
    if not found:
        raise ConfigError(f"ssl.truststore.location: {path} has no certificate")
    return TrustStore(_checked(_der_of(found), str(path)), str(path))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _refuse_unless_pem(key: str, type_key: str, kind: str) -> None:
    if kind != PEM:
        raise ConfigError(f"{key} is for {type_key}=PEM, and it is {kind}")


def _read(location: str | None, disk: Disk, key: str) -> bytes | None:
    if location is None:
        return None
    path = Path(location)
    try:
        data = read_file(disk, path, MOST_STORE_BYTES)
    except DiskError as e:
        raise ConfigError(f"{key}: {path}: {os_error_text(OSError(e.errno, ''))}") from e
    except CorruptionError as e:
        raise ConfigError(f"{key}: {e}") from e
    if data[:4] in (_JKS, _JCEKS):
        raise ConfigError(
            f"{key}: {path} is a JKS store, which only Java opens; convert it: keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {path.with_suffix('.p12')} -deststoretype PKCS12"
        )
    return data


# -- PEM


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _pem_key_store(key: bytes, chain: bytes, password: Password | None, source: str) -> KeyStore:
    keys = [found for found in _BLOCK.finditer(key) if found[1].endswith(b"PRIVATE KEY")]
    if len(keys) != 1:
        raise ConfigError(f"{source}: {len(keys)} private keys instead of one")
    certificates = _certificates(chain, source)
    return KeyStore(keys[0][0] + b"\n" + _pem_of(certificates), password, certificates, source)


def _certificates(data: bytes, source: str) -> tuple[bytes, ...]:
    found = []
    if data.count(b"-----BEGIN ") != len(_BLOCK.findall(data)):
        raise ConfigError(f"{source}: a PEM block does not end as it begins")
    for block in _BLOCK.finditer(data):
        if block[1] in _CERTIFICATES:
            try:
                found.append(base64.b64decode(b"".join(block[2].split()), validate=True))
            except binascii.Error as e:
                raise ConfigError(f"{source}: a certificate is not base64: {e}") from e
    if not found:
        raise ConfigError(f"{source}: no certificate is in it")
    return _checked(found, source)


def _checked(certificates: Iterable[bytes], source: str) -> tuple[bytes, ...]:
    found = tuple(certificates)
    for one in found:
        try:
            read_certificate(one)
        except DerError as e:
            raise ConfigError(f"{source}: a certificate cannot be read: {e}") from e
    return found


def _pem_of(certificates: Iterable[bytes]) -> bytes:
    return b"".join(
        b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(one) + b"-----END CERTIFICATE-----\n"
        for one in certificates
    )


# -- PKCS12


def _pkcs12(data: bytes, path: Path, password: Password | None, key: str) -> Any:
    if not data.startswith(_DER_SEQUENCE):
        raise ConfigError(f"{key}: {path} is neither PEM nor PKCS12")
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError as e:
        raise ConfigError(f"{key}: {path} is PKCS12: {install_extra('security')}") from e
    try:
        return load_pkcs12(data, None if password is None else password.reveal().encode())
    except ValueError as e:
        raise ConfigError(f"{key}: {path} cannot be opened: its password is another, or it is damaged") from e
    except Exception as e:  # of `cryptography`, say `UnsupportedAlgorithm`
        raise ConfigError(f"{key}: {path} cannot be opened: {printable(e)}") from e


def _pkcs12_key_store(opened: Any, path: Path) -> KeyStore:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if opened.key is None or opened.cert is None:
        raise ConfigError(f"ssl.keystore.location: {path} has no private key with its certificate")
    try:
        key = opened.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = _chain(opened.cert.certificate, [one.certificate for one in opened.additional_certs])
    except Exception as e:
        raise ConfigError(f"ssl.keystore.location: {path} cannot be used: {printable(e)}") from e
    certificates = _checked(_der_of(chain), str(path))
    return KeyStore(key + _pem_of(certificates), None, certificates, str(path))


def _chain(own: Any, others: list[Any]) -> list[Any]:
    """Return the chain in order: a store may have more certificates, in any order."""
    chain, left = [own], list(others)
    while left and chain[-1].issuer != chain[-1].subject:
        above = next((one for one in left if one.subject == chain[-1].issuer), None)
        if above is None:
            break
        left.remove(above)
        chain.append(above)
    return chain


def _der_of(certificates: Iterable[Any]) -> list[bytes]:
    from cryptography.hazmat.primitives.serialization import Encoding

    return [one.public_bytes(Encoding.DER) for one in certificates]
