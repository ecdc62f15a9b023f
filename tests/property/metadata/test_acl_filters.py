"""Index of ACL filters: those that match an entry, against a look at every filter."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.metadata.controller.acl_filters import AclFilter, FilterIndex, matches
from service.security.acls import AclEntry

NAMES = ["*", "a", "ab", "abc", "b", "\U0010ffff"]
names = st.sampled_from(NAMES)
principals = st.sampled_from(["User:a", "User:*", "Group:a"])
hosts = st.sampled_from(["*", "h"])
entries = st.builds(
    AclEntry,
    st.sampled_from([2, 3]),
    names,
    st.sampled_from([3, 4]),
    principals,
    hosts,
    st.sampled_from([2, 3, 99]),
    st.sampled_from([2, 3]),
)
filters = st.builds(
    AclFilter,
    st.sampled_from([1, 2, 3]),
    st.none() | names | st.just(""),
    st.sampled_from([1, 2, 3, 4]),
    st.none() | principals,
    st.none() | hosts,
    st.sampled_from([1, 2, 3, 99]),
    st.sampled_from([1, 2, 3]),
)
OF_ANY_NAME = [AclFilter(1, name, 2, None, None, 1, 1) for name in NAMES]


@settings(max_examples=400, deadline=None)
@given(st.lists(filters, max_size=30), entries)
@example(OF_ANY_NAME, AclEntry(2, "*", 3, "User:a", "*", 3, 3))
@example(OF_ANY_NAME, AclEntry(2, "a", 4, "User:a", "*", 3, 3))
def test_the_index_finds_each_filter_that_matches_once(wanted: list[AclFilter], entry: AclEntry) -> None:
    index = FilterIndex()
    for number, one in enumerate(wanted):
        index.add(number, one)
    found = list(index.matching(entry))
    assert sorted(found) == [number for number, one in enumerate(wanted) if matches(one, entry)]


def literally(wanted: AclFilter, entry: AclEntry) -> bool:
    """The rule as Kafka's documentation of its command has it."""
    for open_to, want, is_there in (
        (1, wanted.resource_type, entry.resource_type),
        (None, wanted.principal, entry.principal),
        (None, wanted.host, entry.host),
        (1, wanted.operation, entry.operation),
        (1, wanted.permission, entry.permission),
    ):
        if want != open_to and want != is_there:
            return False
    if wanted.pattern in (3, 4) and wanted.pattern != entry.pattern:
        return False
    if wanted.name is None:
        return True
    if wanted.pattern != 2:
        return wanted.name == entry.name
    return wanted.name.startswith(entry.name) if entry.pattern == 4 else entry.name in (wanted.name, "*")


@settings(max_examples=400, deadline=None)
@given(filters, entries)
def test_a_filter_matches_what_the_rule_says(wanted: AclFilter, entry: AclEntry) -> None:
    assert matches(wanted, entry) == literally(wanted, entry)
