from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chandy.state.host.cache import ENTRY, MISSING, HotCache, lookup, weight

KEYS = st.sampled_from([b"a", b"b", b"c", b"dd", b""])
ENTRIES = st.dictionaries(KEYS, st.none() | st.binary(max_size=9))


@given(st.lists(ENTRIES, max_size=4), st.lists(KEYS))
def test_the_first_level_that_has_a_key_says_its_value(
    levels: list[dict[bytes, bytes | None]], keys: list[bytes]
) -> None:
    flat: dict[bytes, bytes | None] = {}
    for level in reversed(levels):
        flat |= level
    assert lookup(keys, levels) == [flat.get(key, MISSING) for key in keys]


def test_a_value_like_the_mark_of_missing_ones_is_a_value() -> None:
    same = bytes(bytearray(MISSING))
    assert lookup([b"a"], [{b"a": same}])[0] is same
    assert same is not MISSING


@given(st.lists(ENTRIES | st.none()))
def test_the_size_is_that_of_the_entries_and_two_rotations_forget(
    steps: list[dict[bytes, bytes | None] | None],
) -> None:
    cache = HotCache()
    recent: dict[bytes, bytes | None] = {}
    older: dict[bytes, bytes | None] = {}
    for entries in steps:
        if entries is None:
            cache.rotate()
            recent, older = {}, recent
        else:
            cache.put(entries)
            recent |= entries
        assert (cache.recent, cache.older) == (recent, older)
        assert cache.size == weight(recent) + weight(older)
    cache.clear()
    assert (cache.recent, cache.older, cache.size) == ({}, {}, 0)


def test_the_weight_counts_keys_values_and_the_dict() -> None:
    assert weight({}) == 0
    assert weight({b"abc": b"12345", b"d": None}) == 2 * ENTRY + 3 + 5 + 1
