"""Attackers of TLS: each is closed, says why in one line, and an innocent client goes on."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from service.network.server import Server
from tests.support.certificates import Authority, Issued
from tests.support.processes import wait_until
from tests.support.tls_server import CA, client_context, connect, echo, receive, request, serving, settings

OTHER = Authority("Other CA")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.INFO, "service.network.peer")

    class Lines(list[str]):
        def __iter__(self) -> Iterator[str]:
            return iter([one.getMessage() for one in caplog.records])

    return Lines()


def is_served(port: int, context: ssl.SSLContext | None = None) -> bool:
    with connect(port, context or client_context()) as conn:
        conn.sendall(request(b"innocent"))
        return receive(conn, 12)[4:] == b"innocent"


def is_refused(port: int, context: ssl.SSLContext) -> bool:
    """Whether a request of this client is not answered, in the handshake or right behind it."""
    try:
        with connect(port, context) as conn:
            conn.sendall(request(b"attacker"))
            return not conn.recv(12)
    except (ssl.SSLError, ConnectionError):
        return True


def gone(server: Server) -> bool:
    wait_until("the end of all connections", lambda: server.connection_count == 0, 5)
    return True


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused(tmp_path: Path, version: ssl.TLSVersion) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with serving(settings(tmp_path), echo) as (port, server):
        assert is_refused(port, context)
        assert is_served(port)
        assert gone(server)


@pytest.mark.parametrize("suites", ["NULL:@SECLEVEL=0", "aNULL:@SECLEVEL=0"])
def test_suites_that_hide_or_prove_nothing_are_refused(tmp_path: Path, suites: str) -> None:
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(suites)
    with serving(settings(tmp_path), echo) as (port, _):
        assert is_refused(port, context)
        assert is_served(port)


def s_client(port: int, version: str, typed: bytes) -> bytes:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", version, "-quiet", "-no_ign_eof"]
    process = subprocess.Popen(
        [one for one in command if one != "-quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    time.sleep(0.5)  # s_client takes a letter alone at the beginning of what it reads at once
    with suppress(BrokenPipeError):
        for at in range(0, len(typed), 2):
            process.stdin.write(typed[at : at + 2])
            process.stdin.flush()
            time.sleep(0.002)
    out, _ = process.communicate(timeout=10)
    return out


def test_a_flood_of_key_updates_is_cut(tmp_path: Path, lines: list[str]) -> None:
    with serving(settings(tmp_path), echo) as (port, server):
        s_client(port, "-tls1_3", b"K\n" * 200)
        assert gone(server)
        assert [one for one in lines if "65 records in a row brought no byte" in one]
        assert is_served(port)


def test_a_renegotiation_is_refused(tmp_path: Path) -> None:
    with serving(settings(tmp_path), echo) as (port, server):
        assert b"no renegotiation" in s_client(port, "-tls1_2", b"R\n")
        assert gone(server)
        assert is_served(port)


def test_a_chain_of_a_hundred_kilobytes_is_refused(tmp_path: Path, lines: list[str]) -> None:
    own = CA.issue("alice")
    many = Issued(own.key, own.certificate, tuple(CA.issue(f"nobody {at}").certificate for at in range(400)))
    with serving(settings(tmp_path, client_auth="requested"), echo) as (port, server):
        assert is_refused(port, client_context(many, tmp_path))
        assert gone(server)
        assert [one for one in lines if "excessive message size" in one]
        assert is_served(port)


def _not_a_ca() -> Issued:
    wrong = Authority("No CA", above=CA, is_ca=False)
    return wrong.issue("alice")


WRONG: dict[str, tuple[Any, str]] = {
    "expired": (lambda: CA.issue("alice", days=-0.5), "certificate has expired"),
    "not yet valid": (lambda: CA.issue("alice", starts_in_days=1), "certificate is not yet valid"),
    "of another authority": (lambda: OTHER.issue("alice"), "unable to get local issuer certificate"),
    "below no authority": (_not_a_ca, "invalid CA certificate"),
}


@pytest.mark.parametrize("client_auth", ["requested", "required"])
@pytest.mark.parametrize("kind", WRONG)
def test_a_certificate_that_does_not_verify_fails_the_handshake(
    tmp_path: Path, lines: list[str], kind: str, client_auth: str
) -> None:
    make, reason = WRONG[kind]
    with serving(settings(tmp_path, client_auth=client_auth), echo) as (port, server):
        assert is_refused(port, client_context(make(), tmp_path))
        assert gone(server)
        assert [one for one in lines if reason in one]
        assert is_served(port, client_context(CA.issue("bob"), tmp_path))


def test_a_client_without_a_certificate_is_refused_where_one_is_required(tmp_path: Path) -> None:
    with serving(settings(tmp_path, client_auth="required"), echo) as (port, server):
        assert is_refused(port, client_context())
        assert gone(server)


def subject_with(value: str, kind: x509.ObjectIdentifier = NameOID.COMMON_NAME) -> x509.Name:
    with warnings.catch_warnings(action="ignore"):
        return x509.Name([x509.NameAttribute(kind, value, _validate=False)])


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("alice\0.evil", "CN=alice\\00.evil"),
        ("alice\nUser:admin", "CN=alice\nUser:admin"),
        ("a,O=x", "CN=a\\,O\\=x"),
    ],
)
def test_a_hostile_name_is_spelled_so_that_it_is_nobody_elses(tmp_path: Path, value: str, name: str) -> None:
    seen = []

    def answer(context: Any, frame: memoryview) -> Any:
        seen.append(context.session.principal)
        return echo(context, frame)

    client = CA.issue(subject_with(value), hosts=())
    with serving(settings(tmp_path, client_auth="required"), answer) as (port, _):
        assert is_served(port, client_context(client, tmp_path))
    assert [tuple(one) for one in seen] == [("User", name, False)]


def test_a_subject_of_sixty_kilobytes_is_refused(tmp_path: Path, lines: list[str]) -> None:
    client = CA.issue(subject_with("a" * 60_000, NameOID.ORGANIZATION_NAME), hosts=())
    with serving(settings(tmp_path, client_auth="required"), echo) as (port, server):
        assert is_refused(port, client_context(client, tmp_path))
        assert gone(server)
        assert [one for one in lines if "a subject of 60" in one and len(one) < 300]


def test_a_name_that_no_rule_matches_closes_the_connection(tmp_path: Path, lines: list[str]) -> None:
    rules = "RULE:^CN=(.*),O=Acme$/$1/"
    client = CA.issue(subject_with("alice\nINFO forged line"), hosts=())
    with serving(settings(tmp_path, client_auth="required", principal_mapping_rules=rules), echo) as (
        port,
        server,
    ):
        assert is_refused(port, client_context(client, tmp_path))
        assert gone(server)
    (line,) = [one for one in lines if "no rule" in one]
    assert "\n" not in line


def test_connections_that_say_nothing_or_half_a_hello_end_with_the_time(tmp_path: Path) -> None:
    with serving(settings(tmp_path), echo, timeout_s=0.7) as (port, server):
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        half = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for one in half:
            one.sendall(bytes.fromhex("16030102000100"))
        assert is_served(port)
        for one in idle + half:
            one.settimeout(5)
            assert one.recv(1) == b""
            one.close()
        assert gone(server)


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (request(b"\x00\x12\x00\x04\x00\x00\x00\x01\x00\x02me"), "a Kafka request without TLS"),
    ],
)
def test_other_protocols_are_closed_with_a_line_that_names_them(
    tmp_path: Path, lines: list[str], sent: bytes, named: str
) -> None:
    with serving(settings(tmp_path), echo) as (port, server):
        with socket.create_connection(("127.0.0.1", port)) as conn:
            conn.sendall(sent)
            assert conn.recv(1) == b""
        assert gone(server)
        assert [one for one in lines if one.endswith(f"TLS is expected here, and it sent {named}")]


def test_a_request_that_is_cut_by_the_end_is_not_handled(tmp_path: Path) -> None:
    handled = []

    def answer(context: Any, frame: memoryview) -> Any:
        handled.append(bytes(frame))
        return echo(context, frame)

    with serving(settings(tmp_path), answer) as (port, server):
        conn = connect(port, client_context())
        conn.sendall(request(b"whole") + request(b"cut off")[:-1])
        receive(conn, 9)
        socket.socket.shutdown(conn, socket.SHUT_WR)  # no close_notify
        conn.recv(1)
        conn.close()
        assert gone(server)
    assert handled == [b"whole"]


@pytest.mark.parametrize("ends", [True, False])
def test_a_session_goes_on_when_its_certificate_ends_unless_that_is_to_end_it(
    tmp_path: Path, ends: bool
) -> None:
    now = [time.time()]
    client = CA.issue("alice", hosts=(), days=1)
    tls = settings(tmp_path, client_auth="required")
    with (
        serving(tls, echo, now_s=(lambda: now[0]) if ends else None) as (port, server),
        connect(port, client_context(client, tmp_path)) as first,
    ):
        first.sendall(request(b"before"))
        assert receive(first, 10)
        # as if the next client came just before the end
        now[0] = client.certificate.not_valid_after_utc.timestamp() - 0.4
        with connect(port, client_context(client, tmp_path)) as last:
            last.sendall(request(b"before"))
            assert receive(last, 10)
            time.sleep(0.6)
            last.sendall(request(b"after."))
            if ends:
                assert last.recv(1) == b""
            else:
                assert receive(last, 10)[4:] == b"after."
        assert server.connection_count >= 1


def test_a_tls_client_of_a_plain_listener_is_closed_with_a_line_that_says_so(lines: list[str]) -> None:
    with (
        serving(None, echo) as (port, server),
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        connect(port, client_context())
    assert gone(server)
    assert [one for one in lines if one.endswith("it begins like a TLS ClientHello")]
