"""The console's pages of transactions on a whole node: lists, filters, hanging ones, the stable offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import system_world
from tests.node.conftest import NodeThread, Talk
from tests.support.console_thread import ConsoleThread
from tests.support.transactional_client import TransactionalClient, settled

NONE = ErrorCode.none


class Shown(NamedTuple):
    console: ConsoleThread
    bootstrap: str
    talk: Talk


@pytest.fixture
def shown(start: Callable[..., NodeThread]) -> Iterator[Shown]:
    """A node that takes what it cannot verify, so that transactions can hang, and its console."""
    node = start(
        system_world(),  # the console's clock
        transaction_partition_verification_enable="false",
        transaction_state_log_num_partitions="2",
        offsets_topic_num_partitions="2",
    )
    bootstrap = f"{node.host}:{node.port}"
    with node.client() as client, ConsoleThread(bootstrap) as console:
        yield Shown(console, bootstrap, Talk(client))


def opened(shown: Shown, transactional_id: str, topic: str, *, known: bool) -> TransactionalClient:
    """Leave a transaction with one record open, of which its coordinator knows or not."""
    client = TransactionalClient(shown.bootstrap, transactional_id, version=1)
    assert settled(client, client.init) == NONE
    if known:
        assert settled(client, lambda: client.add((topic, 0))) == {(topic, 0): NONE}
    answer = settled(client, lambda: client.produce(topic, 0, [b"one", b"two"]))
    assert answer.error_code == NONE
    return client


def test_open_and_hanging_transactions_are_listed_described_and_found(shown: Shown) -> None:
    get, talk = shown.console.get, shown.talk
    assert "No transactional ids yet" in get("/transactions").text
    for topic in ("orders", "lost", "plain"):
        talk.create(topic)
    with (
        opened(shown, "billing-<7>", "orders", known=True) as billing,
        opened(shown, "stray", "lost", known=False) as stray,
        TransactionalClient(shown.bootstrap, "idle") as idle,
    ):
        assert settled(idle, idle.init) == NONE
        page = get("/transactions?state=Ongoing")
        assert "1 transactional id found, 1 with an open transaction" in page.text
        row = page.row("billing-<7>")
        assert (row[1], row[3], row[4], row[5]) == ("Ongoing", "60 s", "1", str(billing.producer_id))
        assert row[2].endswith(("ms", "s"))
        # Open ones come first.
        everything = get("/transactions?pattern=.*").text
        assert everything.index("billing-<7>") < everything.index("idle") < everything.index("stray")
        assert "idle" not in get(f"/transactions?producer={stray.producer_id}").text.partition("Hanging")[0]
        assert "stray" in get(f"/transactions?producer={stray.producer_id}").text
        assert "1 transactional id found" in get("/transactions?pattern=bill.*").text
        assert "No transactional id matches" in get("/transactions?pattern=bill").text
        assert "No transactional id matches" in get("/transactions?longer=3600").text

        page = get("/transaction?id=billing-%3C7%3E")
        assert "Ongoing" in page.text
        assert page.row("orders")[1:3] == ["0", "0"]
        assert page.row("orders")[4] == "no"
        page = get("/transaction?id=stray")
        assert page.row("lost")[2:] == ["0", page.row("lost")[3], "hangs"]
        assert "firn transaction abort --topic lost --partition 0 --start-offset 0" in page.text

        page = get("/transactions/hanging?topic=lost&older=0")
        assert page.row("lost-0")[1:5] == ["0", str(stray.producer_id), "0", "stray"]
        assert "No transaction hangs in lost" in get("/transactions/hanging?topic=lost").text
        assert "No transaction hangs in orders" in get("/transactions/hanging?topic=orders&older=0").text

        assert settled(billing, lambda: billing.end(commit=True)) == NONE
        assert "State CompleteCommit Last transaction began 20" in get("/transaction?id=billing-%3C7%3E").text


def test_a_partitions_page_says_who_holds_its_stable_offset_back(shown: Shown) -> None:
    get, talk = shown.console.get, shown.talk
    for topic in ("orders", "lost"):
        talk.create(topic)
    assert "Behind the high watermark 0 Open transactions none" in get("/topic?name=orders&partition=0").text
    with (
        opened(shown, "billing", "orders", known=True) as billing,
        opened(shown, "stray", "lost", known=False) as stray,
    ):
        page = get("/topic?name=orders&partition=0").text
        assert "Last stable offset 0 Behind the high watermark 2 offsets Open transactions 1" in page
        assert f"billing (producer {billing.producer_id}, epoch 0), since 20" in page
        assert "from offset 0 on" in page
        page = get("/topic?name=lost&partition=0").text
        assert f"stray (producer {stray.producer_id}, epoch 0), since 20" in page
        assert "no coordinator knows it" in page
        assert settled(billing, lambda: billing.end(commit=False)) == NONE
        page = get("/topic?name=orders&partition=0").text
        assert "Last stable offset 3 Behind the high watermark 0" in page


def test_wrong_filters_and_unknown_names_are_said(shown: Shown) -> None:
    get = shown.console.get
    for path, status, said in (
        ("/transactions?state=Sleeping", 400, "There is no state 'Sleeping'"),
        ("/transactions?producer=x", 400, "'x' is not a producer id"),
        ("/transactions?longer=-1", 400, "'-1' is not a number of seconds"),
        ("/transactions?longer=99999999999999999999", 400, "is not a number of seconds"),
        ("/transactions?pattern=(", 400, "'(' is not a regular expression of RE2's syntax"),
        ("/transaction?id=nobody", 404, "there is no transactional id nobody"),
        ("/transaction?id=", 404, "No such transactional id"),
        ("/transactions/hanging?topic=nobody", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        page = get(path)
        assert (page.status, said in page.text) == (status, True), page.text
