"""The groups page: both protocols, members, what each has, lag by partition, with and without a script."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from tests.support.browser import window
from tests.support.clients import Admin
from tests.support.console import console_node, console_of
from tests.support.members import Member
from tests.support.processes import wait_until

RECORDS = 30
KINDS = {"billing-classic": "confluent", "billing-consumer": "confluent-consumer"}
LEFT = "left-<b>&"


def write(bootstrap: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce("flights", b"%d" % number, partition=number % 3)
    assert not producer.flush(30)


def has_read_all(member: Member) -> bool:
    return len(member.values) == RECORDS


@pytest.fixture(scope="module")
def grouped(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL of a console and address of its node: two groups with a member, and one that was left."""
    folder = tmp_path_factory.mktemp("groups")
    node = console_node(folder / "node", None, **{"group.initial.rebalance.delay.ms": "0"})
    members: list[Member] = []
    try:
        node.start()
        Admin(node.bootstrap).create("flights", 3)
        write(node.bootstrap, RECORDS)
        for group, kind in KINDS.items():
            members.append(Member(kind, node.bootstrap, group, "flights").start())
        passing = Member("confluent", node.bootstrap, LEFT, "flights").start()
        for member in (*members, passing):
            wait_until("it has read all", partial(has_read_all, member))
        passing.leave()
        with console_of(node.bootstrap, folder, "--survey-every", "0") as url:
            yield url, node.bootstrap
    finally:
        for member in members:
            member.leave()
        node.close()


def test_the_list_tells_protocol_and_state_and_finds_by_id(browser: Any, grouped: tuple[str, str]) -> None:
    with window(browser, grouped[0]) as looking:
        words = looking.text("/groups")
        assert "3 groups" in words
        for group in (*KINDS, LEFT):
            assert group in words
        assert "consumer (KIP-848)" in words
        assert "Empty" in words
        looking.page.fill("input[type=search]", "CONSUMER")
        looking.page.click("button:has-text('Find')")
        looking.until_it_says("1 match")
        assert "billing-classic" not in looking.page.inner_text("main")
        looking.page.click("a:has-text('billing-consumer')")
        looking.until_it_says("uniform")


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("script", [True, False])
def test_a_group_shows_members_and_lag(
    browser: Any, grouped: tuple[str, str], group: str, script: bool
) -> None:
    with window(browser, grouped[0], java_script_enabled=script) as looking:
        words = looking.text(f"/group?id={group}")
        assert "Stable" in words
        assert "flights 0, 1, 2" in words
        rows = looking.page.locator("#live-positions tbody tr")
        assert rows.count() == 3
        assert "flights" in rows.nth(0).inner_text()


def test_lag_is_shown_and_plotted_over_time(browser: Any, grouped: tuple[str, str]) -> None:
    url, bootstrap = grouped
    with window(browser, url) as looking:
        page = looking.open(f"/group?id={LEFT.replace('<', '%3C').replace('>', '%3E').replace('&', '%26')}")
        assert "The group has no members now" in page.inner_text("main")
        write(bootstrap, 6)
        looking.until("document.querySelectorAll('#live-positions svg.lag polyline').length === 3")
        wait_until("the lag", lambda: "at most 2" in page.inner_html("#live-positions"), 30)


def test_a_group_that_is_not_there_is_named(browser: Any, grouped: tuple[str, str]) -> None:
    with window(browser, grouped[0]) as looking:
        assert "No such group" in looking.text("/group?id=nobody")
