"""Clients of librdkafka for commands that send and read records, and its errors in a sentence."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from service.base.errors import FirnError
from service.cli.client_properties import client_options_of_args

PATIENCE_S: Final = 30.0
"""How long a command waits for a first broker."""
TELL_AFTER_S: Final = 2.0
STALLED_S: Final = 5.0
"""How long brokers may take no record before that is said."""


class RecordsError(FirnError):
    """Records that could not be sent or read; the message says why."""


class _LastLine(logging.Handler):
    """Keeper of the last line that librdkafka would write to stderr: it does so for fatal errors."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class Connection:
    """Errors that a client of librdkafka tells: a failed login, or that no broker answers."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.client: Any = None
        self._last_line = _LastLine()
        self.logger = logging.Logger("librdkafka")
        self.logger.addHandler(self._last_line)
        self._failure: str | None = None
        self._last = ""
        self._is_down_told = False
        self._done, self._moved_at, self._is_stall_told = -1, time.monotonic(), False

    def on_error(self, error: Any) -> None:
        """Callback `error_cb` of a client: keeps what another try cannot mend."""
        from confluent_kafka import KafkaError

        self._last = str(error.str())
        if error.fatal() or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._failure = self._last

    def serve(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a method of a client that serves callbacks.

        Raises `RecordsError` for what ends the client: the method raises it, or, where other callbacks came
        after it, a `SystemError` with it as its cause or without one.
        """
        from confluent_kafka import KafkaException

        try:
            return call(*arguments)
        except (KafkaException, SystemError) as e:
            cause = e if isinstance(e, KafkaException) else e.__cause__
            if isinstance(cause, KafkaException):
                self._failure = str(cause.args[0].str())
            else:
                self._failure = self._last_line.text or self._last or str(e)
            raise RecordsError(f"{self._bootstrap}: {self._failure}") from e

    def check(self) -> None:
        """Raise `RecordsError` if this client will never get on."""
        if self._failure is not None:
            raise RecordsError(f"{self._bootstrap}: {self._failure}")

    def answered(self) -> None:
        """Note that a broker has answered."""
        self._is_down_told = False

    def tell_down(self) -> None:
        """Say that no broker answers, once until one does."""
        if not self._is_down_told:
            why = f": {self._last}" if self._last else ""
            print(f"waiting for a broker at {self._bootstrap}{why}", file=sys.stderr)
            self._is_down_told = True

    def tell_stall(self, done: int, waiting: int) -> None:
        """Note how many records brokers have taken, and how many wait for them; say once if none is taken."""
        now = time.monotonic()
        if done != self._done or not waiting:
            self._done, self._moved_at, self._is_stall_told = done, now, False
        elif now - self._moved_at > STALLED_S and not self._is_stall_told:
            why = f": {self._last}" if self._last else ""
            print(f"{waiting:,} records wait for brokers at {self._bootstrap}{why}", file=sys.stderr)
            self._is_stall_told = True

    def until_answered(self, ask: Callable[[float], Any]) -> Any:
        """Return the answer of `ask(seconds)`, tried again while no broker is there; say so meanwhile."""
        from confluent_kafka import KafkaException

        began, is_told = time.monotonic(), False
        while True:
            try:
                return ask(TELL_AFTER_S)
            except KafkaException as e:
                self.serve(self.client.poll, 0)  # a login that failed is told there alone
                self.check()
                if not e.args[0].retriable() and e.args[0].name() not in ("_TRANSPORT", "_TIMED_OUT"):
                    raise RecordsError(str(e.args[0].str())) from e
                if time.monotonic() - began > PATIENCE_S:
                    why = f": {self._last}" if self._last else ""
                    raise RecordsError(f"no broker answers at {self._bootstrap}{why}") from e
                if not is_told:
                    print(f"waiting for a broker at {self._bootstrap}", file=sys.stderr)
                    is_told = True


def settings_of_args(args: argparse.Namespace, connection: Connection) -> dict[str, Any]:
    """Return the settings of a client: where it connects, how it logs in, and those of `--set`, which win.

    Raises `ConfigError`.
    """
    from service.client.librdkafka import librdkafka_settings

    return {
        "bootstrap.servers": args.bootstrap_server,
        "log_level": 0,  # `Connection` tells what there is to tell
        "logger": connection.logger,
        "error_cb": connection.on_error,
        **librdkafka_settings(client_options_of_args(args)),
        **dict(args.set),
    }


def partitions_of(client: Any, connection: Connection, topic: str) -> list[int]:
    """Return the partitions of a topic. Raises `RecordsError` where there is no such topic."""
    found = connection.until_answered(lambda seconds: client.list_topics(topic, timeout=seconds))
    told = found.topics[topic]
    if told.error is not None:
        raise RecordsError(f"{topic}: {told.error.str()}")
    return sorted(told.partitions)
