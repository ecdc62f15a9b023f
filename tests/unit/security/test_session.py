"""Sessions and principals."""

from __future__ import annotations

from service.network.request import RequestContext
from service.security.principal import ANONYMOUS, Principal
from service.security.session import NODE_ITSELF, Session, anonymous


def test_a_principal_is_written_as_type_and_name() -> None:
    assert str(Principal("User", "alice")) == "User:alice"
    assert str(ANONYMOUS) == "User:ANONYMOUS"


def test_the_clients_of_a_plaintext_listener_are_anonymous() -> None:
    session = anonymous("192.0.2.9", "OUTSIDE")
    assert session.principal == ("User", "ANONYMOUS", False)
    assert (session.host, session.listener, session.protocol) == ("192.0.2.9", "OUTSIDE", "PLAINTEXT")
    assert session.expires_s is None


def test_a_kept_context_has_the_session_of_its_connection() -> None:
    session = Session(Principal("User", "alice"), "192.0.2.9", "L", "SASL_SSL", 7.5)
    context = RequestContext(1, "192.0.2.9", 50_000, "L", session)
    assert context.kept().session is session


def test_no_client_has_the_session_of_the_node_itself() -> None:
    assert anonymous("127.0.0.1", "") is not NODE_ITSELF
    assert Session(Principal("User", ""), "127.0.0.1", "", "") != NODE_ITSELF
