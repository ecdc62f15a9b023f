"""Records Apache Kafka's answers to every sequence of up to five messages before and behind a login.

``python -m tests.golden.security.capture`` writes ``logins.json``: what became of the last message of each
sequence, by the messages' numbers. A sequence that Kafka cut goes on in no other.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from tests.support.kafka_node import KafkaNode
from tests.support.login_frames import NAMES, message, outcome, sized
from tests.support.secured_kafka import make_pem, secured_kafka

LONGEST = 5
DIGITS = "0123456789abcd"
GOLDEN = Path(__file__).with_name("logins.json")


class Ended(Exception):
    """The peer closed the connection."""


def receive(peer: socket.socket) -> bytes | None:
    """One answer; None where the peer ends the connection instead."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        try:
            more = peer.recv(65536)
        except ConnectionResetError:
            return None
        if not more:
            return None
        data += more
    return data[4:]


def ask(address: tuple[str, int], sequence: str) -> tuple[str, bool]:
    """(what became of the last message, whether the connection goes on)."""
    with socket.create_connection(address, 20) as peer:
        peer.settimeout(20)
        found, answer = "", b""
        for number, digit in enumerate(sequence):
            name = NAMES[int(digit, 16)]
            try:
                peer.sendall(sized(message(name, number)))
            except (BrokenPipeError, ConnectionResetError):
                raise Ended(sequence) from None
            got = receive(peer)
            found = outcome(name, number, got)
            if got is None:
                return found, False
            answer = got
        del answer
        # Whether it stays open shows at once: the delay of failures is 0.
        peer.settimeout(0.02)
        try:
            return found, bool(peer.recv(1))
        except TimeoutError:
            return found, True
        except ConnectionResetError:
            return found, False


def record(address: tuple[str, int]) -> dict[str, str]:
    found: dict[str, str] = {}
    alive = [""]
    with ThreadPoolExecutor(16) as threads:
        for _ in range(LONGEST):
            asked = [before + digit for before, digit in product(alive, DIGITS)]
            answers = list(threads.map(lambda one: ask(address, one), asked))
            alive = []
            for sequence, (word, goes_on) in zip(asked, answers, strict=True):
                found[sequence] = word + ("" if goes_on else " closed")
                if goes_on:
                    alive.append(sequence)
            print(len(found), "sequences,", len(alive), "go on", file=sys.stderr)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pem = make_pem(Path(folder))
        settings = {"connection.failed.authentication.delay.ms": "0"}
        with secured_kafka(Path(folder) / "kafka", pem, settings) as node:
            write(node)


def write(node: KafkaNode) -> None:
    host, _, port = node.addresses["SASL_PLAINTEXT"].rpartition(":")
    began = time.monotonic()
    found = record((host, int(port)))
    words = sorted(set(found.values()))
    by_word = {word: [one for one in found if found[one] == word] for word in words}
    lines = [f"{json.dumps(word)}: {json.dumps(' '.join(by_word[word]))}" for word in words]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(found)} sequences in {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
