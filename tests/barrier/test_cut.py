"""The order in which queries are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.barrier.cut import DefinitionError, downstream_first


def test_a_query_comes_before_those_whose_output_it_reads() -> None:
    reads = {"a": (), "b": ("a",), "c": ("a", "b"), "d": ()}
    order = downstream_first(reads)
    assert sorted(order) == ["a", "b", "c", "d"]
    assert order.index("c") < order.index("b") < order.index("a")


def test_queries_that_nothing_orders_come_last_started_first() -> None:
    assert downstream_first({"a": (), "b": (), "c": ()}) == ("c", "b", "a")


def test_what_one_query_reads_does_not_change_the_order_of_the_others() -> None:
    # b reads a, and nobody has said so.
    assert downstream_first({"a": (), "b": (), "c": ("b",)}) == ("c", "b", "a")


def test_no_query_gives_no_order() -> None:
    assert downstream_first({}) == ()


def test_queries_that_read_each_other_in_a_circle_are_refused_by_name() -> None:
    with pytest.raises(DefinitionError) as raised:
        downstream_first({"a": ("b",), "b": ("a",)})
    assert raised.value.found in ("a -> b -> a", "b -> a -> b")
    assert "in a circle" in str(raised.value)


def test_a_query_that_reads_itself_is_refused() -> None:
    with pytest.raises(DefinitionError, match="a -> a"):
        downstream_first({"a": ("a",)})


def test_reading_a_query_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(DefinitionError, match=r"'b' reads 'nobody'.*a, b"):
        downstream_first({"a": (), "b": ("nobody",)})


@given(st.lists(st.sets(st.integers(0, 9)), max_size=10))
def test_every_order_has_all_queries_and_none_before_its_consumers(edges: list[set[int]]) -> None:
    # A query can read those only that were started before it.
    reads = {str(n): tuple(str(p) for p in sorted(ps) if p < n) for n, ps in enumerate(edges)}
    order = downstream_first(reads)
    assert sorted(order) == sorted(reads)
    for query, producers in reads.items():
        assert all(order.index(query) < order.index(producer) for producer in producers)
    # So those that nobody has named are in their order, too.
    assert order == tuple(reversed(reads))
