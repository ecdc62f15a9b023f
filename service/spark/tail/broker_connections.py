"""Kept connections to the brokers of one cluster. Blocking.

Brokers go, come back and hand their partitions on; the caller tries again. One `BrokerConnections` belongs
to one thread, but for `abort`.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from typing import Any, Final

from service.base.errors import ConfigError
from service.client.blocking_client import BlockingClient
from service.client.security import security_of
from service.config.client import Address, ClientOptions
from service.spark.errors import BrokerError
from service.spark.tail.options import TailOptions
from service.spark.tail.topic_lookup import metadata_request
from service.wire.api import APIS, ApiKey
from service.wire.errors import WireError

_CLIENT_ID: Final = "firn-spark"
_MORE_TRIED: Final = 3
"""Brokers that are asked for metadata besides those of ``bootstrap.servers``, when none of these answers."""
_LOWEST: Final[dict[int, int]] = {ApiKey.METADATA: 10, ApiKey.LIST_OFFSETS: 2, ApiKey.FETCH: 13}
"""The first versions with topic ids, isolation levels, and topics by id."""


class BrokerConnections:
    """Requests to any broker, or to a certain one."""

    def __init__(self, tail: TailOptions, shuffled: random.Random | None = None) -> None:
        self._tail = tail
        self._connections: dict[Address, BlockingClient] = {}
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
        """Request metadata of these topics and of the cluster from any broker.

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
        """Return one broker's response. After any failure its connection is made again the next time.

        Raises as `BlockingClient`, and `ConfigError` where the broker is too old for the tail.
        """
        if self._is_aborted:
            raise ConnectionAbortedError("the read was given up")
        try:
            connection = self._connections.get(address)
            if connection is None:
                connection = self._connections[address] = _connected(address, self._tail.client, timeout_s)
            if not connection.serves(api_key) or connection.version(api_key) < _LOWEST[api_key]:
                raise ConfigError(
                    f"{connection.address} is too old, or too new: of {APIS[api_key].name} the tail needs "
                    f"version {_LOWEST[api_key]} to {APIS[api_key].max_version}, with topics by id "
                    "(Kafka 3.1 or newer)"
                )
            return connection.request(api_key, message, timeout_s=timeout_s, expected_bytes=expected_bytes)
        except BaseException:
            if (broken := self._connections.pop(address, None)) is not None:
                broken.close()
            raise

    def _candidates(self) -> list[Address]:
        """Return the brokers to try: connected ones, the user's, others that those named."""
        connected = list(self._connections)
        servers = list(self._tail.servers)
        others = [address for address in self._known if address not in servers]
        self._random.shuffle(servers)
        self._random.shuffle(others)
        return list(dict.fromkeys((*connected, *servers, *others[:_MORE_TRIED])))


def _connected(address: Address, options: ClientOptions, timeout_s: float) -> BlockingClient:
    request_s = options.request_timeout_ms / 1000
    return BlockingClient(
        *address,
        options.client_id or _CLIENT_ID,
        timeout_s=request_s + options.wait_max_ms / 1000,
        connect_timeout_s=options.connect_timeout_ms / 1000,
        set_up_timeout_s=min(timeout_s, request_s),
        security=security_of(options, secrets.token_urlsafe),
    )
