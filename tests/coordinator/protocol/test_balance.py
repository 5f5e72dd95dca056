"""Who is to have which shard: balanced, with as few moves as that takes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.protocol.balance import wanted_owners

HOSTS = ["a", "b", "c", "d", "e"]
OWNERS = st.dictionaries(st.integers(0, 40), st.sampled_from(HOSTS), max_size=40)
SIZES = st.dictionaries(st.integers(0, 40), st.integers(0, 10**9))
ELIGIBLE = st.sets(st.sampled_from(HOSTS), min_size=1)


def counts(wanted: dict[int, str], hosts: set[str]) -> list[int]:
    found = Counter(wanted.values())
    return [found[host] for host in hosts]


@given(OWNERS, ELIGIBLE, SIZES)
def test_every_shard_is_on_a_host_that_may_have_it_and_none_has_two_more_than_another(
    owners: dict[int, str], hosts: set[str], sizes: dict[int, int]
) -> None:
    wanted = wanted_owners(owners, hosts, sizes)
    assert wanted.keys() == owners.keys()
    assert set(wanted.values()) <= hosts
    assert max(counts(wanted, hosts)) - min(counts(wanted, hosts)) <= 1


@given(OWNERS, ELIGIBLE, SIZES)
def test_nothing_moves_that_need_not_move(
    owners: dict[int, str], hosts: set[str], sizes: dict[int, int]
) -> None:
    wanted = wanted_owners(owners, hosts, sizes)
    moved = sum(wanted[shard] != owner for shard, owner in owners.items())
    part, more = divmod(len(owners), len(hosts))
    present = sorted((sum(owner == host for owner in owners.values()) for host in hosts), reverse=True)
    # No balance keeps more than a host's part of what it has.
    kept = sum(min(has, part + (number < more)) for number, has in enumerate(present))
    assert moved == len(owners) - kept


@given(OWNERS, ELIGIBLE, SIZES)
def test_what_is_wanted_stays_wanted(owners: dict[int, str], hosts: set[str], sizes: dict[int, int]) -> None:
    wanted = wanted_owners(owners, hosts, sizes)
    assert wanted_owners(wanted, hosts, sizes) == wanted


def test_small_shards_move_rather_than_large_ones() -> None:
    owners = dict.fromkeys(range(4), "a")
    wanted = wanted_owners(owners, {"a", "b"}, {0: 5, 1: 100, 2: 7, 3: 200})
    assert wanted == {0: "b", 1: "a", 2: "b", 3: "a"}


def test_one_that_joins_gets_its_part_and_nothing_else_moves() -> None:
    owners = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c", 6: "a", 7: "b"}
    wanted = wanted_owners(owners, {"a", "b", "c", "d"}, {})
    assert [wanted[shard] for shard in owners].count("d") == 2
    assert {shard for shard, owner in owners.items() if wanted[shard] != owner} == {
        shard for shard, owner in wanted.items() if owner == "d"
    }


def test_what_nobody_has_goes_where_there_is_room() -> None:
    assert wanted_owners({0: "", 1: "a", 2: "", 3: "gone"}, {"a", "b"}, {}) == {
        0: "b",
        1: "a",
        2: "a",
        3: "b",
    }


def test_without_a_host_all_stays_as_it_is() -> None:
    assert wanted_owners({1: "a"}, set(), {}) == {1: "a"}
