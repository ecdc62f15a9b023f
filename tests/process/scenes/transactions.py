"""Leaves a transaction of `billing-7` open, behind one that was aborted, for as long as it runs."""

import sys
import time
from pathlib import Path

from confluent_kafka import Producer

producer = Producer(
    {
        "bootstrap.servers": "127.0.0.1:9092",
        "transactional.id": "billing-7",
        "transaction.timeout.ms": 600_000,
    }
)
producer.init_transactions(60)
for end in (producer.abort_transaction, None):
    producer.begin_transaction()
    for partition in range(4):
        producer.produce("flights", b"value", partition=partition)
    producer.flush(60)
    if end is not None:
        end(60)
Path("transactions.log").write_text("open\n")
time.sleep(600)
sys.exit(1)
