"""Parsing of OpenMetrics text by `firn top`, and its table."""

from __future__ import annotations

from service.cli.top_table import table
from service.console.figures import Between, Figures, parse

TEXT = """\
# HELP firn_request_handling_seconds Requests.
# TYPE firn_request_handling_seconds histogram
firn_request_handling_seconds_bucket{{api="PRODUCE",le="0.001"}} {few}
firn_request_handling_seconds_bucket{{api="PRODUCE",le="0.1"}} {most}
firn_request_handling_seconds_bucket{{api="PRODUCE",le="+Inf"}} {most}
firn_request_handling_seconds_count{{api="PRODUCE"}} {most}
firn_request_received_bytes_total{{api="PRODUCE"}} {size}
firn_log_bytes{{tier="local"}} 1.5e+06
firn_tiering_blocked_partitions{{reason="a \\"b\\" \\\\ c\\nd"}} 3.0
# EOF
"""


def figures(at_s: float, few: int, most: int, size: int) -> Figures:
    health = {"ready": True, "checks": {"store": {"state": "degraded", "why": "it is away"}}}
    turns = [{"took_ms": 61.5, "ended_s_ago": 3, "who": "PRODUCE of \x1b[2J"}]
    return Figures(at_s, TEXT.format(few=few, most=most, size=size), health, turns)


def test_labels_come_back_as_they_were() -> None:
    found = parse(TEXT.format(few=1, most=2, size=3))
    assert found["firn_tiering_blocked_partitions"] == {(("reason", 'a "b" \\ c\nd'),): 3.0}


def test_malformed_samples_are_skipped() -> None:
    # JSON has no word for what is no number.
    assert parse("a\nb c d\n{} 1\nok 1\nodd nan\nbig +Inf\nx{ 1\n").keys() == {"ok"}


def test_rates_and_quantiles_are_of_the_time_between_two_looks() -> None:
    between = Between(figures(10, 1000, 1000, 5), figures(12, 1050, 1100, 2005))
    assert between.rate("firn_request_handling_seconds_count", api="PRODUCE") == 50
    assert between.rate("firn_request_received_bytes_total") == 1000
    assert between.quantile("firn_request_handling_seconds", 0.5, api="PRODUCE") == 0.001
    assert between.quantile("firn_request_handling_seconds", 0.99, api="PRODUCE") == 0.1


def test_a_restarted_node_has_no_negative_rates() -> None:
    assert (
        Between(figures(10, 9, 9, 500), figures(12, 1, 1, 5)).rate("firn_request_received_bytes_total") == 0
    )


def test_the_table_tells_what_is_wrong_and_moves_no_cursor() -> None:
    lines = table("http://x", figures(10, 1, 1, 1), figures(12, 1, 3, 9001))
    assert lines[0] == "http://x: ready; store degraded: it is away"
    text = "\n".join(lines)
    assert "1.5 MB" in text
    assert '3 do not tier: a "b" \\ c\\nd' in text
    assert "61.5 ms" in text
    assert "\x1b" not in text


def test_one_look_is_enough_for_a_table() -> None:
    assert table("http://x", None, Figures(0, "", {"ready": False}, []))[0] == "http://x: not ready"


def test_apis_are_sorted_by_a_column_and_long_names_keep_the_others_aligned() -> None:
    long = "LIST_PARTITION_REASSIGNMENTS_OF_ANOTHER_DAY"
    text = "".join(
        f'firn_request_handling_seconds_count{{api="{api}"}} {count}\n'
        f'firn_request_received_bytes_total{{api="{api}"}} {size}\n'
        for api, count, size in (("FETCH", 10, 7_000), (long, 30, 1), ("PRODUCE", 20, 9_000_000))
    )
    now = Figures(10.0, text, {"ready": True}, [])
    before = Figures(9.0, "", {"ready": True}, [])
    for order, wanted in (("requests", [long, "PRODUCE", "FETCH"]), ("in", ["PRODUCE", "FETCH", long])):
        lines = table("http://x", before, now, order)[2:6]
        assert [line.split()[0] for line in lines[1:]] == wanted
        assert len({len(line) for line in lines}) == 1
        assert "9.0 MB/s" in "".join(lines)
