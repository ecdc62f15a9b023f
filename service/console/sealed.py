"""TLS of an HTTP listener: its certificate, which may change, and aiohttp's connections above the cipher.

Handshakes run on a thread of their own, as those of the listeners for Kafka's protocol do, and never on the
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from service.base.disk import DiskError, os_error_text
from service.base.errors import ConfigError, CorruptionError
from service.base.files import read_file
from service.config.security import TlsSettings
from service.console.access_settings import AccessSettings
from service.network.metrics import AuthenticationMetrics
from service.network.tls.contexts import TlsContext, server_context
from service.network.tls.handshakes import Handshakes
from service.network.tls.identity import TlsIdentity
from service.network.tls.listener import TlsListener
from service.network.tls.shell import TlsTransport
from service.network.tls.stores import PEM, StoreFiles, open_stores
from service.security.certificates import ending

if TYPE_CHECKING:
    from service.base.world import World

_MOST_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 16 << 10
_DAY_S: Final = 86_400


class HttpTls:
    """Certificate of a listener, for connections from now on. `look` is for a thread."""

    def __init__(self, settings: AccessSettings, world: World) -> None:
        """Read the files. Raises `ConfigError`."""
        assert settings.certificate is not None
        self._settings = settings
        self._disk, self._clock = world.disk, world.clock
        self._paths = [one for one in (settings.certificate, settings.key) if one is not None]
        self._tls = TlsSettings(
            keystore_type=PEM, keystore_location=settings.certificate, key_password=settings.key_password
        )
        self._data = self._read()
        context = self._context(self._data)
        self._pool = world.threads.pool("http-tls", 1)
        self._listener = TlsListener(
            settings.name,
            context,
            Handshakes(self._pool, settings.most_handshakes),
            metrics=AuthenticationMetrics(),
            is_login=False,
            timeout_s=settings.timeout_s,
        )
        self._piece = memoryview(bytearray(_PIECE_BYTES))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._listener.start(loop)

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def connection(
        self, loop: asyncio.AbstractEventLoop, above: Callable[[], asyncio.Protocol]
    ) -> TlsTransport:
        """Return the protocol of a new connection, with that of `above` behind the cipher."""
        return TlsTransport(loop, self._listener, _Clear(above(), self._piece))

    def days_left(self) -> float:
        """Return the days until the first certificate of the chain ends; negative after."""
        keys = self._listener.context.keys
        assert keys is not None
        return (keys.not_after_s - self._clock.now_ms() / 1000) / _DAY_S

    def ending(self) -> str | None:
        """Return the words for a certificate that has few days left."""
        return ending(self.days_left())

    def look(self) -> None:
        """Read the files again, and take them if they have changed. Raises `ConfigError`, which leaves the
        certificate as it was."""
        data = self._read()
        if data != self._data:
            self._listener.context = self._context(data)
            self._data = data

    def _read(self) -> bytes:
        """Return the files one after the other: a private key is found wherever it stands."""
        return b"\n".join(self._read_one(Path(path)) for path in self._paths)

    def _read_one(self, path: Path) -> bytes:
        option = self._settings.certificate_option
        try:
            data = read_file(self._disk, path, _MOST_BYTES)
        except DiskError as e:
            raise ConfigError(f"{option}: {path}: {os_error_text(OSError(e.errno, ''))}") from e
        except CorruptionError as e:
            raise ConfigError(f"{option}: {e}") from e
        if b"-----BEGIN " not in data:
            raise ConfigError(f"{option}: {path} is no PEM file")
        return data

    def _context(self, data: bytes) -> TlsContext:
        try:
            return server_context(self._tls, open_stores(self._tls, StoreFiles(data, None)))
        except ConfigError as e:
            raise ConfigError(f"{self._settings.certificate_option}: {e}") from e


class _Clear:
    """aiohttp's protocol of one connection, which gets clear bytes (`shell.ClearProtocol`)."""

    __slots__ = ("_above", "_piece")

    def __init__(self, above: asyncio.Protocol, piece: memoryview) -> None:
        self._above = above
        self._piece = piece

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._above.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes:
            self._above.data_received(bytes(self._piece[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._above.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._above.connection_lost(exc)

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def secured(self, identity: TlsIdentity) -> None:
        """Do nothing: who asks is shown by a token."""
