"""Key and trust stores: what opens, whatever its type says, and each refusal with its key."""

from __future__ import annotations

import base64
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from service.base.disk import SystemDisk
from service.base.errors import ConfigError
from service.config.passwords import Password
from service.config.security import TlsSettings
from service.network.tls.contexts import client_context, server_context, shake_hands
from service.network.tls.engine import SealBroken
from service.network.tls.stores import Stores, open_stores, read_store_files
from tests.support.certificates import Authority, trust_pkcs12

CA = Authority()
BELOW = Authority("Lower CA", above=CA)
SERVER = BELOW.issue()
SECRET = Password("open sesame")
SECT163K1 = base64.b64decode(
    "MIIDqwIBAzCCA2EGCSqGSIb3DQEHAaCCA1IEggNOMIIDSjCCAiIGCSqGSIb3DQEHBqCCAhMwggIPAgEAMIICCAYJKoZIhvcNAQcB"
    "MFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjMMHD+Dyk3AwICCAAwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEPAG"
    "yD8SM6tklndFnd3IfVqAggGgwPY5SCIdVz8P8wm7q7d/YBkP2Ab9tyk+ZOWzZpXNd6MEt9d7i8/MS9jakOcjfAUzc3B8J/2H679+"
    "5+6pJyM4D8Qm+2tDsUgnBFxKL3E+/WpcRQU7AH81gvgD77F40czhy4SY9L6gOq+EqQfkcyjcpD5asQV5B/lB1+Q+bmeShtI7qTP0"
    "vey2NikVlmr0Koxhe82c9ILhIxk+XBr+RL7/qqfgpzQISvjKqU+M5l2R/1YOzhdw3kp8wwsQpDz4IJLbMHiJ1XRK+9gXWa7pkzUP"
    "7E7kEzGkAmDSD05a0tJc7JIm6J8t4WiCpX1j21teThr1JuDkQcmLr0j2G56JbBtB0awMTjpuAZdxVonlfBfKFot1HsDF/pMeBLRW"
    "eDeu86osZfXKbg4YDjbLGOVCuMYBgy0Xo2Ejo0pMDX43kjYhv5G+qGXkuLXbCMzM71zRQuL7oj20tjkQYQA4qCnHcYIFIBZc5OLg"
    "h4a/k5j4Nj1H/vU8gzw9ekdGGqn1QfdDv1RpdIwwU9UDzE65ray3JX3v/uXjxStxn0rSnpZBmY2v1EowggEgBgkqhkiG9w0BBwGg"
    "ggERBIIBDTCCAQkwggEFBgsqhkiG9w0BDAoBAqCBzjCByzBXBgkqhkiG9w0BBQ0wSjApBgkqhkiG9w0BBQwwHAQIvQwGaZcZGwoC"
    "AggAMAwGCCqGSIb3DQIJBQAwHQYJYIZIAWUDBAEqBBDnDdW0iCedNrgjEErdTgu1BHCrdFu5OGbvdbQ2IAkCtUyI3qcbbJXWD55p"
    "3jAYze4CKZX4zfuUML1bKtO7RZl7hZa3Kts1vunEGDi0E+iNIg+OqCgWvnJpR21nBoJk46mC+V7jD8V2L2OE6E9mR4LmhJA2HGcV"
    "eIImQe1kJQpoccj/MSUwIwYJKoZIhvcNAQkVMRYEFBRiY5SWYRjX1s0YoOJGAPsY9CcgMEEwMTANBglghkgBZQMEAgEFAAQgMNJe"
    "+veFQ4P5c8UnTKCuSCa5NDBBrPmk8Gb1db5LR90ECNGMrTgH9DGYAgIIAA=="
)
"""PKCS12 with the password "pw" and a key of a curve that `cryptography` does not know"""


def opened(**settings: Any) -> tuple[TlsSettings, Stores]:
    made = TlsSettings(**settings)
    return made, open_stores(made, read_store_files(made, SystemDisk()))


def works(folder: Path, **settings: Any) -> bool:
    """Whether a server with these stores shakes hands with a client that trusts the upper authority."""
    server = server_context(*opened(**settings))
    client = client_context(
        *opened(truststore_location=CA.write(folder / "trusted.pem"), checks_hostname=False)
    )
    shake_hands(server.openssl, client.openssl)
    return len(server.keys.certificates) == 2


def test_pem_files_open_with_a_password_and_without(tmp_path: Path) -> None:
    assert works(tmp_path, keystore_location=SERVER.write(tmp_path / "plain.pem"))
    locked = SERVER.write(tmp_path / "locked.pem", "open sesame")
    assert works(tmp_path, keystore_location=locked, key_password=SECRET)


def test_inline_pem_opens(tmp_path: Path) -> None:
    key, chain = Password(SERVER.key_pem()), Password(SERVER.chain_pem)
    assert works(tmp_path, keystore_type="PEM", keystore_key=key, keystore_certificate_chain=chain)


def test_pkcs12_opens_with_its_chain_in_order(tmp_path: Path) -> None:
    path = SERVER.write_pkcs12(tmp_path / "server.p12", "open sesame")
    for kind in ("PKCS12", "JKS", "PEM"):
        assert works(tmp_path, keystore_location=path, keystore_password=SECRET, keystore_type=kind)


def test_trust_stores_open_as_pem_as_pkcs12_and_inline(tmp_path: Path) -> None:
    p12 = trust_pkcs12(tmp_path / "trust.p12", "open sesame", CA.issued.certificate)
    server = server_context(*opened(keystore_location=SERVER.write(tmp_path / "server.pem")))
    for settings in (
        {"truststore_location": CA.write(tmp_path / "ca.pem")},
        {"truststore_location": p12, "truststore_password": SECRET},
        {"truststore_certificates": Password(CA.pem), "truststore_type": "PEM"},
    ):
        client = client_context(*opened(checks_hostname=False, **settings))
        shake_hands(server.openssl, client.openssl)
    other = client_context(
        *opened(checks_hostname=False, truststore_location=Authority().write(tmp_path / "o"))
    )
    with pytest.raises(SealBroken, match="the certificate is refused"):
        shake_hands(server.openssl, other.openssl)


def test_a_certificate_of_the_trust_store_is_trusted_without_its_issuer(tmp_path: Path) -> None:
    server = server_context(*opened(keystore_location=SERVER.write(tmp_path / "server.pem")))
    for trusted in (BELOW.pem, SERVER.pem):
        settings = {"truststore_certificates": Password(trusted), "truststore_type": "PEM"}
        shake_hands(server.openssl, client_context(*opened(checks_hostname=False, **settings)).openssl)


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_keytools_stores_open_or_tell_how_to_convert_them(tmp_path: Path, kind: str) -> None:
    if shutil.which("keytool") is None:
        pytest.skip("keytool is not here")
    path = tmp_path / "java.store"
    command = ["keytool", "-genkeypair", "-alias", "own", "-keyalg", "EC", "-dname", "CN=localhost"]
    command += ["-keystore", str(path), "-storetype", kind, "-storepass", "sesame", "-keypass", "sesame"]
    subprocess.run(command, check=True, capture_output=True)
    settings = {"keystore_location": str(path), "keystore_password": Password("sesame")}
    if kind == "PKCS12":
        assert server_context(*opened(**settings)).keys.own.name == "CN=localhost"
        return
    with pytest.raises(ConfigError) as error:
        opened(**settings)
    assert f"keytool -importkeystore -srckeystore {path} -destkeystore {tmp_path / 'java.p12'}" in str(
        error.value
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a key without a chain": (
        {"keystore_type": "PEM", "keystore_key": SECRET},
        "ssl.keystore.key is set without ssl.keystore.certificate.chain",
    ),
    "a chain without a key": (
        {"keystore_type": "PEM", "keystore_certificate_chain": SECRET},
        "ssl.keystore.certificate.chain is set without ssl.keystore.key",
    ),
    "an inline key that is no PEM": (
        {"keystore_type": "PKCS12", "keystore_key": SECRET, "keystore_certificate_chain": SECRET},
        "ssl.keystore.key is for ssl.keystore.type=PEM, and it is PKCS12",
    ),
    "an inline key and a file": (
        {
            "keystore_type": "PEM",
            "keystore_key": SECRET,
            "keystore_certificate_chain": SECRET,
            "keystore_location": "good.pem",
        },
        "ssl.keystore.location and ssl.keystore.key exclude each other",
    ),
    "an inline key with the password of a store": (
        {
            "keystore_type": "PEM",
            "keystore_key": SECRET,
            "keystore_certificate_chain": SECRET,
            "keystore_password": SECRET,
        },
        "ssl.keystore.password is not for PEM",
    ),
    "a PEM file with the password of a store": (
        {"keystore_location": "good.pem", "keystore_password": SECRET},
        "ssl.keystore.password is not for PEM",
    ),
    "a password without a store": (
        {"keystore_password": SECRET},
        "ssl.keystore.password is set without ssl.keystore.location",
    ),
    "PKCS12 with a key of an unknown kind": (
        {"keystore_location": "curve.p12", "keystore_password": Password("pw")},
        "curve.p12 cannot be opened: Curve 1.3.132.0.1 is not supported",
    ),
    "PKCS12 without a password": ({"keystore_location": "good.p12"}, "ssl.keystore.password is not set"),
    "PKCS12 with another password": (
        {"keystore_location": "good.p12", "keystore_password": Password("wrong")},
        "its password is another",
    ),
    "a locked key without its password": ({"keystore_location": "locked.pem"}, "ssl.key.password is another"),
    "a locked key with another password": (
        {"keystore_location": "locked.pem", "key_password": Password("wrong")},
        "ssl.key.password is another",
    ),
    "a file that is not there": ({"keystore_location": "nowhere.pem"}, "No such file or directory"),
    "a folder": ({"keystore_location": "."}, "ssl.keystore.location"),
    "bytes of no store": (
        {"keystore_location": "noise", "keystore_password": SECRET},
        "is neither PEM nor PKCS12",
    ),
    "a half-written file": ({"keystore_location": "half.pem"}, "a PEM block does not end as it begins"),
    "a key of another certificate": (
        {"keystore_location": "mixed.pem"},
        "the private key does not belong to the certificate",
    ),
    "two keys": ({"keystore_location": "two.pem"}, "2 private keys instead of one"),
    "no certificate": ({"keystore_location": "bare.pem"}, "no certificate is in it"),
    "a certificate that is none": ({"keystore_location": "odd.pem"}, "a certificate cannot be read"),
    "inline trust and a file": (
        {"truststore_type": "PEM", "truststore_certificates": SECRET, "truststore_location": "good.pem"},
        "exclude each other",
    ),
    "PEM trust with a password": (
        {"truststore_location": "good.pem", "truststore_password": SECRET},
        "ssl.truststore.password is not for PEM",
    ),
    "a trust password alone": (
        {"truststore_password": SECRET},
        "ssl.truststore.password is set without ssl.truststore.location",
    ),
    "no store at all": ({}, "has to be set for a listener"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stores")
    SERVER.write(made / "good.pem")
    SERVER.write(made / "locked.pem", "open sesame")
    SERVER.write_pkcs12(made / "good.p12", "open sesame")
    whole = SERVER.key_pem() + SERVER.chain_pem
    (made / "half.pem").write_text(whole[: len(whole) - 200])
    (made / "mixed.pem").write_text(CA.issue().key_pem() + SERVER.chain_pem)
    (made / "two.pem").write_text(SERVER.key_pem() + whole)
    (made / "bare.pem").write_text(SERVER.key_pem())
    (made / "curve.p12").write_bytes(SECT163K1)
    (made / "noise").write_bytes(b"\x99" * 100)
    nothing = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (made / "odd.pem").write_text(SERVER.key_pem() + nothing)
    return made


@pytest.mark.parametrize("case", REFUSED)
def test_stores_that_cannot_be_used_are_refused_with_the_reason(folder: Path, case: str) -> None:
    settings, reason = REFUSED[case]
    placed: dict[str, Any] = {
        name: str(folder / value) if name.endswith("location") else value for name, value in settings.items()
    }
    with pytest.raises(ConfigError) as error:
        server_context(*opened(**placed))
    assert reason in str(error.value)
    assert "sesame" not in repr(error.value) + repr(TlsSettings(**placed))


SUITES_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
ONE_12 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


def test_suites_are_chosen_by_ianas_names(tmp_path: Path) -> None:
    keys = {"keystore_location": SERVER.write(tmp_path / "server.pem")}
    context = server_context(*opened(**keys, enabled_protocols=("TLSv1.2",), cipher_suites=(ONE_12,))).openssl
    assert [one["name"] for one in context.get_ciphers() if one["protocol"] != "TLSv1.3"] == [
        "ECDHE-ECDSA-AES128-GCM-SHA256"
    ]
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    only = server_context(*opened(**keys, cipher_suites=SUITES_13)).openssl
    assert only.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("protocols", "suites", "reason"),
    [
        (("TLSv1.2", "TLSv1.3"), (ONE_12,), "set ssl.enabled.protocols=TLSv1.2"),
        (("TLSv1.3",), SUITES_13[:2], "TLS_CHACHA20_POLY1305_SHA256 cannot be left out"),
        (("TLSv1.2",), SUITES_13, "no suite of TLSv1.2 is in the list"),
        (("TLSv1.2",), ("TLS_RSA_WITH_NULL_SHA256",), "is unknown, or not secure"),
        (("TLSv1.2",), ("ECDHE-ECDSA-AES128-GCM-SHA256",), "is unknown, or not secure"),
    ],
)
def test_suites_that_cannot_be_had_are_refused(
    tmp_path: Path, protocols: tuple[str, ...], suites: tuple[str, ...], reason: str
) -> None:
    keys = {"keystore_location": SERVER.write(tmp_path / "server.pem")}
    with pytest.raises(ConfigError, match=r"ssl\.cipher\.suites") as error:
        server_context(*opened(**keys, enabled_protocols=protocols, cipher_suites=suites))
    assert reason in str(error.value)


def test_tickets_are_for_clients_that_show_no_certificate(tmp_path: Path) -> None:
    keys = {"keystore_location": SERVER.write(tmp_path / "server.pem")}
    assert not server_context(*opened(**keys)).openssl.options & ssl.OP_NO_TICKET
    for auth in ("requested", "required"):
        context = server_context(*opened(**keys, client_auth=auth)).openssl
        assert context.options & ssl.OP_NO_TICKET
        assert context.num_tickets == 0
