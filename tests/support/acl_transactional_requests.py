"""Requests of transactional producers and their admins whose answer depends on a right.

The coordinator may not have its topic yet, so what is not denied has any other error.
"""

from __future__ import annotations

from typing import Any, Final

from service.wire.api import ApiKey
from tests.support.acl_requests import Place, module_of, word

ID: Final = "some-id"
OF_CLIENTS: Final = 3


def _denied(*codes: Any) -> str:
    """The denials among the errors, each once."""
    words = dict.fromkeys(word(code) for code in codes)
    return ", ".join(one for one in words if one.endswith("denied")) or "not denied"


def init_transactional_id(p: Place) -> str:
    answer = p.alice(
        ApiKey.INIT_PRODUCER_ID,
        "InitProducerIdRequest",
        transactional_id=ID,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    return _denied(answer.error_code)


def end_txn(p: Place) -> str:
    answer = p.alice(
        ApiKey.END_TXN,
        "EndTxnRequest",
        transactional_id=ID,
        producer_id=7,
        producer_epoch=0,
        committed=True,
    )
    return _denied(answer.error_code)


def add_offsets(p: Place) -> str:
    answer = p.alice(
        ApiKey.ADD_OFFSETS_TO_TXN,
        "AddOffsetsToTxnRequest",
        transactional_id=ID,
        producer_id=7,
        producer_epoch=0,
        group_id=p.group,
    )
    return _denied(answer.error_code)


def _transaction(p: Place) -> Any:
    module = module_of(ApiKey.ADD_PARTITIONS_TO_TXN)
    topic = module.AddPartitionsToTxnTopic(name=p.topic, partitions=(0,))
    return module.AddPartitionsToTxnTransaction(
        transactional_id=ID, producer_id=7, producer_epoch=0, verify_only=False, topics=(topic,)
    )


def add_partitions_as_broker(p: Place) -> str:
    answer = p.alice(
        ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxnRequest", transactions=(_transaction(p),)
    )
    return _denied(answer.error_code)


def add_partitions(p: Place) -> str:
    request = module_of(ApiKey.ADD_PARTITIONS_TO_TXN).AddPartitionsToTxnRequest(
        transactions=(_transaction(p),)
    )
    answer = p.alice.client.request(ApiKey.ADD_PARTITIONS_TO_TXN, request, newest=OF_CLIENTS)
    results = answer.results_by_transaction[0].topic_results[0].results_by_partition
    return _denied(*(one.partition_error_code for one in results))


def describe_transactions(p: Place) -> str:
    answer = p.alice(
        ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactionsRequest", transactional_ids=(ID, "another")
    )
    return ", ".join(_denied(one.error_code) for one in answer.transaction_states)
