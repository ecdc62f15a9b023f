"""Bare tokens (SaslHandshake 0): their sessions end as those of SaslAuthenticate do."""

from __future__ import annotations

from service.network.request import Closing
from tests.support.login_frames import message
from tests.support.logins import Listener
from tests.unit.network.test_authenticating import Peer


def test_a_session_of_bare_tokens_ends_too() -> None:
    listener = Listener(max_reauth_ms={"PLAIN": 60_000})
    peer = Peer(listener)
    peer.send(message("plain-bare", 1))
    peer.send(b"\0alice\0secret")
    assert peer.context.session.expires_s == 1060.0  # type: ignore[attr-defined]
    listener.clock.now_s = 5000.0
    assert peer.send(message("metadata", 3)) is None
    assert isinstance(peer.last, Closing)
    assert not listener.asked
