"""Requests of the bucket page: by what they are for, without errors that are answers, with their cost."""

from __future__ import annotations

from service.console.figures import Between, Figures
from service.console.web.costs import Prices
from service.console.web.history import NodeSample
from service.console.web.pages.bucket_requests import requests_section
from service.console.web.store_requests import by_purpose, calls_of

STARTED_S = 1_000_000
NOW_S = STARTED_S + 43_200
TEXT = f"""process_start_time_seconds {STARTED_S}
firn_store_call_seconds_count{{client="tiering",call="put_if_match"}} 400
firn_store_call_seconds_count{{client="tiering",call="put_if_absent"}} 600
firn_store_call_seconds_count{{client="tiering",call="put_stream"}} 10
firn_store_sent_bytes_total{{client="tiering",call="put_stream"}} 200000000
firn_store_call_seconds_count{{client="tiering",call="delete"}} 5
firn_store_call_seconds_count{{client="read",call="get_range"}} 10000
firn_store_call_seconds_count{{client="elsewhere",call="strange"}} 1
firn_store_errors_total{{client="tiering",call="put_if_match",error="PreconditionFailed"}} 30
firn_store_errors_total{{client="tiering",call="put_if_match",error="StoreUnavailable"}} 2
"""


def node(node_id: int, text: str = TEXT) -> NodeSample:
    return NodeSample(node_id, "u", "1", Between(None, Figures(0.0, text, {}, [])), None)


def test_calls_of_all_nodes_are_one_row_for_each_purpose() -> None:
    found = {one.name: one for one in by_purpose(calls_of([node(1), node(2)], NOW_S), Prices())}
    assert list(found) == [
        "Segments uploaded", "Manifests, heads and claims written", "Objects deleted", "Records read",
        "Other calls",
    ]  # fmt: skip
    written = found["Manifests, heads and claims written"]
    assert (written.requests, written.answers, written.errors) == (2000, 60, 4)
    assert (written.cost, written.per_day, written.day_cost) == (0.01, 4000, 0.02)
    assert written.prices_1000 == (0.005,)
    # 20 MB an upload: three parts of 8 MiB, one request to begin and one to end
    assert found["Segments uploaded"].requests == 100
    assert (found["Objects deleted"].cost, found["Objects deleted"].prices_1000) == (0.0, (0.0,))
    assert found["Records read"].cost == 0.008


def test_nothing_is_said_of_a_day_by_a_node_that_has_just_started() -> None:
    (records,) = [
        one for one in by_purpose(calls_of([node(1)], STARTED_S + 10), Prices()) if one.name == "Records read"
    ]
    assert (records.requests, records.per_day, records.day_cost) == (10_000, None, None)


def test_the_table_names_prices_and_folds_the_calls_of_each_node() -> None:
    shown = requests_section([node(1)], Prices(currency="EUR"), NOW_S * 1000)
    assert shown is not None
    table, _, folded = shown.partition("<details>")
    assert "put_if_match" not in table
    assert "tiering: put_if_match" in folded
    assert "0.0050 EUR" in table
    assert "free" in table
    assert requests_section([node(1, "")], Prices(), NOW_S * 1000) is None
