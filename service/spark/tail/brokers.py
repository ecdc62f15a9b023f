"""The brokers of one cluster: whom to ask, over connections that stay. Blocking.

Brokers go, come back and hand their partitions on; whoever asks tries again. One `Brokers` belongs to one
thread, but for `abort`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from service.spark.errors import BrokerError
from service.spark.tail.client_options import Address
from service.spark.tail.connection import Connection
from service.spark.tail.options import TailOptions
from service.spark.tail.places import metadata_request
from service.wire.api import ApiKey
from service.wire.errors import WireError

_MORE_TRIED: Final = 3
"""Brokers that are asked for metadata besides those of ``bootstrap.servers``, when none of these answers."""


class Brokers:
    """Requests to any broker, or to a certain one."""

    def __init__(self, tail: TailOptions, shuffled: random.Random | None = None) -> None:
        self._tail = tail
        self._connections: dict[Address, Connection] = {}
        self._known: list[Address] = []
        self._is_aborted = False
        self._random = random.Random() if shuffled is None else shuffled

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def abort(self) -> None:
        """Let the thread that waits for a broker fail at once. For any thread."""
        self._is_aborted = True
        for connection in list(self._connections.values()):
            connection.abort()

    def metadata(self, names: Sequence[str], timeout_s: float) -> Any:
        """What any broker knows of these topics and of the cluster.

        Raises `OSError` when no broker answers, `BrokerError` when all that do speak something else.
        """
        request = metadata_request(list(names))
        failures: list[tuple[Address, Exception]] = []
        for address in self._candidates():
            try:
                response = self.ask(address, ApiKey.METADATA, request, timeout_s=timeout_s)
            except (OSError, WireError) as e:
                failures.append((address, e))
                continue
            self._known = [(broker.host, broker.port) for broker in response.brokers]
            return response
        said = "; ".join(f"{host}:{port}: {failure}" for (host, port), failure in failures[:5])
        if all(isinstance(failure, WireError) for _, failure in failures):
            raise BrokerError(f"no broker can be understood: {said}")
        raise ConnectionError(f"no broker answers: {said}")

    def ask(
        self, address: Address, api_key: int, message: Any, *, timeout_s: float, expected_bytes: int = 0
    ) -> Any:
        """The answer of one broker. After any failure its connection is made anew the next time."""
        if self._is_aborted:
            raise ConnectionAbortedError("nobody waits for the answer any more")
        try:
            connection = self._connections.get(address)
            if connection is None:
                connection = Connection(address, self._tail.client, timeout_s)
                self._connections[address] = connection
            return connection.request(api_key, message, timeout_s=timeout_s, expected_bytes=expected_bytes)
        except BaseException:
            if (broken := self._connections.pop(address, None)) is not None:
                broken.close()
            raise

    def _candidates(self) -> list[Address]:
        """Those that we are connected to, then the user's, then others that those have told of."""
        connected = list(self._connections)
        servers = list(self._tail.servers)
        others = [address for address in self._known if address not in servers]
        self._random.shuffle(servers)
        self._random.shuffle(others)
        return list(dict.fromkeys((*connected, *servers, *others[:_MORE_TRIED])))
