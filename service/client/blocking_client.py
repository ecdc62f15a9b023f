"""A small blocking client: one connection, one request at a time, versions negotiated.

For the command line and tests.

Example::

    cluster = request_module(ApiKey.DESCRIBE_CLUSTER)
    with Client("127.0.0.1", 9092, "firn-cli") as client:
        request = cluster.DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=False
        )
        print(client.request(ApiKey.DESCRIBE_CLUSTER, request).brokers)
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.wire.api import (
    APIS,
    ApiKey,
    api_versions_request,
    common_versions,
    decode_response,
    encode_request,
    refused_api_versions,
)
from service.wire.errors import MalformedMessage
from service.wire.frames import SIZE_BYTES, read_frame_size


class Client:
    """Canonical messages to and from one broker.

    Raises `OSError` (also when the broker closes the connection), `MalformedMessage` for an answer that is
    not one, and `RequestError` when the broker serves no version of an API that we know. Not safe for
    several threads.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str = "firn",
        *,
        timeout_s: float = 30.0,
        max_response_bytes: int = 256 << 20,
    ) -> None:
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._max_response_bytes = max_response_bytes
        self._correlation_id = 0
        self._versions: dict[int, int] | None = None
        self._socket = socket.create_connection((host, port), timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def greet(self, seconds: float) -> None:
        """Negotiate versions; `TimeoutError` where the broker does not answer within this time."""
        patience_s = self._socket.gettimeout()
        self._socket.settimeout(seconds)
        self._known_versions()
        self._socket.settimeout(patience_s)

    def request(self, api_key: int, message: Any, *, newest: int | None = None) -> Any:
        """The canonical response to the canonical request `message`, both in the newest version both sides
        know, or in `newest` where that is older.
        """
        version = self.version(api_key)
        if newest is not None:
            version = min(version, newest)
        return self._decode(api_key, version, self._exchange(api_key, version, message))

    def version(self, api_key: int) -> int:
        """The version in which `request` talks to the broker."""
        version = self._known_versions().get(api_key)
        if version is None:
            raise RequestError(
                ErrorCode.unsupported_version,
                f"{self.address} serves no known version of {APIS[api_key].name}",
            )
        return version

    def serves(self, api_key: int) -> bool:
        """Whether there is a version of it that both sides know."""
        return api_key in self._known_versions()

    def _known_versions(self) -> dict[int, int]:
        if self._versions is None:
            self._versions = self._negotiate()
        return self._versions

    def _negotiate(self) -> dict[int, int]:
        """Newest common version by API key. A broker older than our ApiVersions answers in version 0
        (KIP-511).
        """
        api = APIS[ApiKey.API_VERSIONS]
        message = api_versions_request()
        version = api.max_version
        answer = self._exchange(api.key, version, message)
        if (older := refused_api_versions(answer)) is not None:
            version = older
            answer = self._exchange(api.key, version, message)
        response = self._decode(api.key, version, answer)
        if response.error_code != ErrorCode.none:
            raise RequestError(ErrorCode(response.error_code), f"{self.address} refused ApiVersions")
        return common_versions(response)

    def _exchange(self, api_key: int, version: int, message: Any) -> bytearray:
        """Send one request; the response frame without its size."""
        self._correlation_id += 1
        self._socket.sendall(encode_request(api_key, version, self._correlation_id, self._client_id, message))
        size = read_frame_size(self._receive(SIZE_BYTES), 0, self._max_response_bytes)
        return self._receive(size)

    def _decode(self, api_key: int, version: int, answer: bytearray) -> Any:
        correlation_id, response = decode_response(api_key, version, answer)
        if correlation_id != self._correlation_id:
            raise MalformedMessage(f"answer to request {correlation_id}, {self._correlation_id} was sent")
        return response

    def _receive(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionResetError(f"{self.address} closed the connection")
            data += piece
        return data
