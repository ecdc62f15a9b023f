"""`firn transaction` at a node in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.node.conftest import NodeThread
from tests.support.firn_commands import Firn
from tests.support.transactional_client import TransactionalClient, settled


def test_an_id_is_terminated_where_transactions_may_not_be_long(
    start: Callable[..., NodeThread], capsys: pytest.CaptureFixture[str]
) -> None:
    node = start(**{"transaction.max.timeout.ms": "30000", "transaction.state.log.num.partitions": "1"})
    bootstrap = f"{node.host}:{node.port}"
    with TransactionalClient(bootstrap, "pay", timeout_ms=30_000) as client:
        assert settled(client, client.init) == ErrorCode.none
        said = Firn(bootstrap, capsys)("transaction", "terminate", "pay")
        assert said.startswith(f"fenced by producer {client.producer_id}, epoch 1")
