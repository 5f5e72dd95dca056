"""Who owns which shard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import StateLostError
from chandy.coordinator.protocol.shard_assignment import ShardAssignment
from chandy.state.rpc.messages import HostHello
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage.checkpoints.manifest import FileRef, Handle

SHARDS = tuple(ShardId("op", number) for number in range(4))
LIVING = {name: HostHello(name, f"address-{name}", "machine", name, 1) for name in "ab"}


def source(number: int) -> RestoreSource:
    return RestoreSource("file:///store", 7, 41, Handle((FileRef("CURRENT", f"pack-{number}", 1, "00"),)))


def test_the_first_host_that_claims_a_shard_owns_it_and_others_are_sent_there() -> None:
    assignment = ShardAssignment(SHARDS)
    assert assignment.claim("a", SHARDS[:2], 0, LIVING).granted == {0: None, 1: None}
    answer = assignment.claim("b", SHARDS[1:3], 0, LIVING)
    assert answer.granted == {2: None}
    assert answer.elsewhere == {1: "address-a"}
    assert assignment.by_owner() == {"a": SHARDS[:2], "b": (SHARDS[2],)}
    assert assignment.owners() == {"a", "b"}
    assert list(assignment.unowned()) == [SHARDS[3]]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), max_size=30))
def test_a_host_owns_something_as_long_as_it_has_a_shard(steps: list[tuple[str, int, bool]]) -> None:
    assignment = ShardAssignment(SHARDS)
    for host, number, claims in steps:
        if claims:
            assignment.claim(host, [SHARDS[number]], 0, LIVING)
        else:
            assignment.give_up(host, SHARDS[number])
        owners = assignment.by_owner()
        assert {one for one in LIVING if assignment.owns(one)} == assignment.owners() == owners.keys()


def test_each_shard_is_restored_from_exactly_its_own_handle() -> None:
    assignment = ShardAssignment(SHARDS, {shard: source(shard.shard) for shard in SHARDS[:3]})
    granted = assignment.claim("a", SHARDS[::2], 0, LIVING).granted
    granted |= assignment.claim("b", SHARDS[1::2], 0, LIVING).granted
    assert granted == {0: source(0), 1: source(1), 2: source(2), 3: None}


def test_nobody_gets_a_shard_whose_owner_is_gone() -> None:
    assignment = ShardAssignment(SHARDS)
    assignment.claim("a", SHARDS[:1], 0, LIVING)
    with pytest.raises(StateLostError, match="its state host a is gone"):
        assignment.claim("b", SHARDS, 1, {"b": LIVING["b"]})


def test_a_claim_that_is_refused_grants_nothing() -> None:
    assignment = ShardAssignment(SHARDS)
    assignment.claim("a", SHARDS[1:2], 0, LIVING)
    with pytest.raises(StateLostError):
        assignment.claim("b", SHARDS, 1, {"b": LIVING["b"]})
    assert assignment.by_owner() == {"a": SHARDS[1:2]}


def test_a_host_whose_restore_failed_gets_the_shard_again_in_the_same_batch() -> None:
    assignment = ShardAssignment(SHARDS, {SHARDS[0]: source(0)})
    first = assignment.claim("a", SHARDS[:1], 5, LIVING)
    assert assignment.claim("a", SHARDS[:1], 5, LIVING) == first


def test_a_host_that_has_forgotten_a_shard_in_a_later_batch_does_not_get_it_again() -> None:
    assignment = ShardAssignment(SHARDS)
    assignment.claim("a", SHARDS[:1], 5, LIVING)
    with pytest.raises(StateLostError, match="no longer has it"):
        assignment.claim("a", SHARDS[:1], 6, LIVING)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sets(st.sampled_from(SHARDS))), max_size=10))
def test_a_shard_never_has_two_owners_and_never_changes_them(claims: list[tuple[str, set[ShardId]]]) -> None:
    assignment, owners = ShardAssignment(SHARDS), dict[ShardId, str]()
    for host, wanted in claims:
        answer = assignment.claim(host, sorted(wanted), 0, LIVING)
        for shard in wanted:
            owner = owners.setdefault(shard, host)
            assert (shard.shard in answer.granted) == (owner == host)
            assert answer.elsewhere.get(shard.shard) == (None if owner == host else f"address-{owner}")
    owned = assignment.by_owner()
    assert {shard: host for host, shards in owned.items() for shard in shards} == owners
    assert all(list(shards) == sorted(shards) for shards in owned.values())
    assert list(owned) == sorted(set(owners.values()))
    assert set(assignment.unowned()) == set(SHARDS) - set(owners)


def test_a_host_is_told_where_it_reaches_the_owner_of_a_shard() -> None:
    living = {
        name: HostHello(name, f"unix-{name}", "m", name, 1, place=place, network=f"network-{name}")
        for name, place in {"a": "here", "b": "here", "c": "there"}.items()
    }
    assignment = ShardAssignment()
    assignment.claim("a", [ShardId("op", 0)], 0, living)
    assert assignment.claim("b", [ShardId("op", 0)], 0, living).elsewhere == {0: "unix-a"}
    assert assignment.claim("c", [ShardId("op", 0)], 0, living).elsewhere == {0: "network-a"}
    # The stream of a host may have just broken.
    assert assignment.claim("gone", [ShardId("op", 0)], 0, living).elsewhere == {0: "network-a"}
