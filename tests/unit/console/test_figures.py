"""Figures of a node, parsed from any metrics text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.console.figures import Between, Figures, parse, without_partitions
from service.console.web.history import History, NodeSample

TEXT = """# HELP firn_x words
firn_x_total{client="a\\"b",call="get"} 3
firn_odd nan
firn_big +Inf
firn_none
firn_partitions{state="online"} 7
firn_partition_end_offset{topic="t",partition="0"} 9
firn_turn_bucket{le="0.1"} 1
firn_turn_bucket{le="+Inf"} 4
firn_turn_bucket{le="nan"} 4
firn_turn_bucket{le="soon"} 4
firn_turn_bucket 4
"""


def figures(text: str) -> Figures:
    return Figures(0, text, {"ready": True, "checks": {}}, [])


def test_samples_without_a_finite_number_are_skipped() -> None:
    found = parse(TEXT)
    assert found["firn_x_total"] == {(("client", 'a"b'), ("call", "get")): 3}
    assert not {"firn_odd", "firn_big", "firn_none"} & found.keys()


def test_a_label_cannot_forge_a_sample() -> None:
    """Only a line feed ends a line; some characters that labels may have end one for Python."""
    for end in ("\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"):
        found = parse(f'firn_group_members{{group="a{end}firn_cluster_brokers 99{end}"}} 1\n')
        assert found == {"firn_group_members": {(("group", f"a{end}firn_cluster_brokers 99{end}"),): 1}}


def test_a_bucket_without_a_bound_is_none() -> None:
    between = Between(None, figures(TEXT))
    assert between.quantile("firn_turn", 0.2) == 0.1
    assert between.quantile("firn_turn", 0.99) == float("inf")


def test_samples_of_partitions_can_be_left_out() -> None:
    found = parse(without_partitions(TEXT))
    assert "firn_partition_end_offset" not in found
    assert found["firn_partitions"] == {(("state", "online"),): 7}


NUMBERS = st.floats() | st.integers(-(10**30), 10**30)


@given(st.lists(st.tuples(st.sampled_from(["0.1", "+Inf", "", "x", "nan", "-1"]), NUMBERS)))
def test_any_metrics_text_yields_points(buckets: list[tuple[str, float]]) -> None:
    text = "\n".join(f'firn_loop_turn_seconds_bucket{{le="{bound}"}} {count}' for bound, count in buckets)
    look = NodeSample(1, "http://n", "1", Between(figures(""), figures(text)), None)
    point = History().add(1000, [look])
    assert point is not None
    assert all(value == value and abs(value) != float("inf") for value in point)  # nan
