"""Every sequence of up to five messages of a login ends as with Apache Kafka 4.3.1 (`capture.py`)."""

from __future__ import annotations

import json
from pathlib import Path

from service.network.authenticating import Authenticator
from service.network.request import Closing, LoggedIn, Response
from service.security.login import LoginState
from service.wire.errors import WireError
from tests.support.login_frames import NAMES, message, outcome
from tests.support.logins import Listener

GOLDEN = Path(__file__).with_name("logins.json")


def recorded() -> dict[str, str]:
    by_word = json.loads(GOLDEN.read_text())
    return {sequence: word for word, found in by_word.items() for sequence in found.split()}


class Peer:
    """One connection to the gate, and to the handler behind it."""

    def __init__(self, listener: Listener) -> None:
        self.gate: Authenticator = listener.connect()
        self.handler = self.gate.handle
        self.context = self.gate.context
        self.is_open = True

    def send(self, name: str, number: int) -> bytes | None:
        frame = memoryview(bytearray(message(name, number)))
        try:
            answer = self.handler(self.context, frame)
        except WireError:
            self.is_open = False
            return None
        assert isinstance(answer, Response)
        if isinstance(answer, LoggedIn):
            self.context, self.handler = answer.context, answer.handler  # type: ignore[assignment]
        if isinstance(answer, Closing):
            self.is_open = False
        return bytes(b"".join(bytes(part) for part in answer.parts))[4:] if answer.parts else None  # type: ignore[arg-type]


def replay(sequence: str) -> tuple[str, Listener, Peer]:
    listener = Listener()
    peer = Peer(listener)
    word = ""
    for number, digit in enumerate(sequence):
        assert peer.is_open
        name = NAMES[int(digit, 16)]
        is_logged_in = peer.gate._login.state is LoginState.COMPLETE
        asked = len(listener.asked)
        word = outcome(name, number, peer.send(name, number))
        assert is_logged_in or len(listener.asked) == asked, "a handler was reached before the login"
    return word + ("" if peer.is_open else " closed"), listener, peer


def test_all_sequences_end_as_with_kafka() -> None:
    differing = {}
    for sequence, word in recorded().items():
        found, _, _ = replay(sequence)
        if found != word:
            differing[" ".join(NAMES[int(one, 16)] for one in sequence)] = (found, word)
    assert not differing, f"{len(differing)}: {list(differing.items())[:20]}"


def test_the_record_has_every_sequence_that_goes_on() -> None:
    found = recorded()
    alive = [""] + [one for one, word in found.items() if not word.endswith("closed")]
    wanted = {before + digit for before in alive if len(before) < 5 for digit in "0123456789abcd"}
    assert set(found) == wanted
    assert len(found) > 1000
