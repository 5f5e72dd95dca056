"""Shards go to partitions in contiguous, even ranges."""

import random
from operator import attrgetter

import pytest

from chandy.state.errors import DefinitionError
from chandy.state.operators.shard_ranges import MAX_SHARDS, partition_of, ranges


def test_ranges_are_disjoint_cover_all_shards_differ_by_at_most_one_and_agree_with_the_formula():
    numbers = random.Random(7)
    for _ in range(100):
        shards = numbers.randint(1, MAX_SHARDS)
        parallelism = numbers.randint(1, shards)
        parts = ranges(shards, parallelism)
        assert len(parts) == parallelism
        starts, stops = list(map(attrgetter("start"), parts)), list(map(attrgetter("stop"), parts))
        assert starts == [0, *stops[:-1]]
        assert stops[-1] == shards
        assert set(map(attrgetter("step"), parts)) == {1}
        sizes = set(map(len, parts))
        assert max(sizes) - min(sizes) <= 1
        for partition in {0, parallelism - 1, numbers.randrange(parallelism)}:
            assert {partition_of(shard, shards, parallelism) for shard in parts[partition]} == {partition}


def test_every_shard_is_served_by_the_computed_partition_for_every_small_pair():
    for shards in range(1, 40):
        for parallelism in range(1, shards + 1):
            for partition, part in enumerate(ranges(shards, parallelism)):
                assert all(partition_of(shard, shards, parallelism) == partition for shard in part)


@pytest.mark.parametrize(
    ("shards", "parallelism", "argument"),
    [
        (16, 2.0, "parallelism"),
        (16, True, "parallelism"),
        (16, "2", "parallelism"),
        ("16", 2, "shards"),
        (0, 1, "shards"),
        (MAX_SHARDS + 1, 1, "shards"),
        (16, 0, "parallelism"),
        (16, 17, "parallelism"),
    ],
)
def test_numbers_that_make_no_assignment_are_refused(shards, parallelism, argument):
    with pytest.raises(DefinitionError) as refused:
        ranges(shards, parallelism)
    assert refused.value.what == f"invalid argument {argument}"
