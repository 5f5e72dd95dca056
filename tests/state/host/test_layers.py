from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from chandy.state.host.cache import weight
from chandy.state.host.layers import Layer, Layers, ordered_keys


@attrs.define
class Need:
    cancelled: bool = False


def add(layer: Layer | Layers, batch: int, *keys: bytes, value: bytes | None = b"1") -> None:
    entries = dict.fromkeys(keys, value)
    layer.add(entries, ordered_keys(entries), batch)


KEYS = st.lists(st.binary(max_size=3).map(lambda tail: b"\x02" + tail) | st.binary(max_size=3), max_size=8)


@given(st.lists(KEYS), st.binary(max_size=2), st.binary(max_size=2))
def test_changed_keys_of_a_range_come_in_order_and_once(
    batches: list[list[bytes]], start: bytes, stop: bytes
) -> None:
    layer = Layer()
    for number, keys in enumerate(batches):
        add(layer, number, *keys)
    everything = sorted(set().union(*batches))
    for first, last in [(start, stop), (b"\x02" + start, b"\x02" + stop)]:
        assert layer.between(first, last) == [key for key in everything if first <= key < last]


def test_looking_at_ordered_keys_does_not_look_at_the_others() -> None:
    layer = Layer()
    add(layer, 0, b"\xa5", b"\x02b", b"\x02a")
    layer.entries = {}
    assert layer.between(b"\x02", b"\x03") == [b"\x02a", b"\x02b"]


def test_a_size_is_an_upper_bound_until_it_is_measured() -> None:
    layer = Layer()
    add(layer, 0, b"a", b"b")
    once = weight(layer.entries)
    assert layer.size == once
    add(layer, 1, b"b", b"a")
    assert layer.size == 2 * once
    layer.measure()
    assert layer.size == once


def test_layers_are_written_oldest_first_up_to_one_that_is_needed() -> None:
    layers = Layers()
    add(layers, 0, b"a")
    assert layers.next() == []
    first, second = Need(), Need()
    layers.freeze(first)
    add(layers, 1, b"b")
    layers.freeze(second)
    add(layers, 2, b"c")
    layers.freeze(None)
    assert [layer.batch for layer in layers.next()] == [0]
    first.cancelled = True
    assert [layer.batch for layer in layers.next()] == [0, 1]
    layers.drop(2)
    assert [layer.batch for layer in layers.next()] == [2]
    layers.drop(1)
    assert (layers.next(), layers.size) == ([], 0)


def test_what_a_reader_holds_on_to_does_not_shrink() -> None:
    layers = Layers()
    add(layers, 0, b"a")
    stack = layers.stack
    layers.freeze(None)
    add(layers, 1, b"b")
    layers.drop(1)
    assert [layer.entries for layer in stack] == [{b"a": b"1"}]
