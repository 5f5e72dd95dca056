"""The keys of a shard: each kind in a range of its own, times in their order, none taken for another."""

from hypothesis import given
from hypothesis import strategies as st

from chandy.state.format import keyspace

names = st.text(min_size=1, max_size=300)
times = st.integers(-(1 << 63), (1 << 63) - 1)
keys = st.binary(max_size=20)


@given(name=names, key=keys)
def test_the_variable_of_a_state_key_is_found_again(name, key):
    prefix = keyspace.value_prefix(name)
    assert keyspace.variable_of(prefix + key) == prefix


@given(name=names, part=st.integers(0, (1 << 32) - 1), time=times, key=keys)
def test_the_owner_of_an_entry_is_its_variable_and_its_key(name, part, time, key):
    value = keyspace.value_prefix(name) + key
    piece = keyspace.part_key(keyspace.part_prefix(name), part, key)
    for entry in (value, piece, keyspace.timed_key(keyspace.EXPIRY, time, value)):
        assert keyspace.owner_of(entry) == (name, key)
    for timers in (keyspace.EVENT_TIMERS, keyspace.PROCESSING_TIMERS):
        assert keyspace.owner_of(keyspace.timed_key(timers, time, key)) == ("$timers", key)


@given(one=st.tuples(times, keys), other=st.tuples(times, keys))
def test_timed_keys_are_ordered_by_time_and_then_by_key_and_are_read_again(one, other):
    first, second = (keyspace.timed_key(keyspace.EVENT_TIMERS, *pair) for pair in (one, other))
    assert (first < second) == (one < other)
    assert keyspace.split_timed(first) == one


@given(until=times, time=times, key=keys)
def test_what_is_due_is_what_is_not_after_the_time(until, time, key):
    start, stop = keyspace.due(keyspace.EXPIRY, until)
    assert (start <= keyspace.timed_key(keyspace.EXPIRY, time, key) < stop) == (time <= until)
    for other in (keyspace.EVENT_TIMERS, keyspace.PROCESSING_TIMERS):
        assert not start <= keyspace.timed_key(other, time, key) < stop


@given(name=names, other=names, part=st.integers(0, (1 << 32) - 1), key=keys)
def test_a_range_has_all_keys_of_its_variable_and_no_other(name, other, part, key):
    for prefix_of in (keyspace.value_prefix, keyspace.part_prefix):
        start = prefix_of(name)
        stop = keyspace.after(start)
        for candidate in (name, other):
            value = keyspace.value_prefix(candidate) + key
            piece = keyspace.part_key(keyspace.part_prefix(candidate), part, key)
            mine = value if prefix_of is keyspace.value_prefix else piece
            assert (start <= mine < stop) == (candidate == name)
            assert not start <= (piece if mine is value else value) < stop


@given(name=names, part=st.integers(0, (1 << 32) - 1), time=times, key=keys)
def test_no_kind_of_key_meets_another_or_a_shards_own(name, part, time, key):
    made = [
        b"\x00" + key,
        keyspace.value_prefix(name) + key,
        keyspace.part_key(keyspace.part_prefix(name), part, key),
        *(
            keyspace.timed_key(prefix, time, key)
            for prefix in (keyspace.EXPIRY, keyspace.EVENT_TIMERS, keyspace.PROCESSING_TIMERS)
        ),
    ]
    firsts = [data[:2] if data[0] == 2 else data[:1] for data in made]
    assert len(set(firsts)) == len(made)
    assert 0xA0 <= made[1][0] <= 0xDB
