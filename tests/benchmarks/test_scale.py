"""The benchmark of scale: what it makes, what it counts, and how figures become rows and ratios."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import scale
from benchmarks.scale import alone, figures, made
from benchmarks.scale.alone import Alone
from benchmarks.scale.figures import Costs, growth, rows
from benchmarks.scale.made import Fleet, acknowledgements, handle
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import ShardId

pytestmark = [pytest.mark.processes, pytest.mark.examples]

COSTS = Costs(
    checkpoint=4,
    messages=1,
    acks=10,
    cut=0.25,
    orders=0.5,
    acks_handled=1.0,
    acks_cpu=0.75,
    trigger_cpu=0.125,
    completing=0.375,
    manifest_bytes=2_000_000,
    manifest_shards=10,
    encode=0.5,
    write=0.25,
    read=0.125,
    decode=0.25,
    discard=None,
    statistics=0.001,
    resident_mb=100.0,
)


@given(shards=st.integers(1, 500), a_host=st.integers(1, 120), a_message=st.none() | st.integers(1, 120))
def test_every_shard_has_one_host_and_one_place_in_the_messages(
    shards: int, a_host: int, a_message: int | None
) -> None:
    fleet = Fleet(shards, a_host, a_message)
    assert sorted(shard for own in fleet.hosts.values() for shard in own) == list(range(shards))
    messages = [
        ack
        for host, own in fleet.hosts.items()
        for ack in acknowledgements(order(1, own), host, fleet.acks_a_message)
    ]
    assert len(messages) == fleet.messages
    acknowledged = [snapshot.shard.shard for ack in messages for snapshot in ack.snapshots]
    assert sorted(acknowledged) == list(range(shards))


def order(checkpoint: int, shards: tuple[int, ...]) -> SnapshotOrder:
    ids = tuple(ShardId(made.UID, shard) for shard in shards)
    return SnapshotOrder(checkpoint, made.QUERY, made.QUERY_ID, 1, ids, "file:///s", None, 0.0, 1.0)


def test_the_parts_of_a_round_trip_make_the_whole_and_what_was_not_measured_is_not_there() -> None:
    found = COSTS.figures
    assert found[figures.ROUND_TRIP] == 1.75
    assert sum(value for name, value in found.items() if name.startswith("part: ")) == 1.75
    assert found[figures.MANIFEST_OUT] == 0.75
    assert found[figures.MANIFEST_IN] == 0.375
    assert found["manifest (MB)"] == 2.0
    assert figures.DISCARD not in found
    assert attrs.evolve(COSTS, discard=0.5).figures[figures.DISCARD] == 0.5


def test_rows_have_the_spread_of_each_figure_by_size() -> None:
    found = rows({10: {"a": [3.0, 1.0, 2.0]}, 100: {"a": [5.0], "b": [0.5]}})
    assert found == [
        {"figure": "a", "shards": 10, "median": 2.0, "least": 1.0, "greatest": 3.0, "checkpoints": 3},
        {"figure": "a", "shards": 100, "median": 5.0, "least": 5.0, "greatest": 5.0, "checkpoints": 1},
        {"figure": "b", "shards": 100, "median": 0.5, "least": 0.5, "greatest": 0.5, "checkpoints": 1},
    ]


def test_growth_is_the_factor_from_each_size_to_the_next_where_there_is_something_to_divide_by() -> None:
    found = growth({1_000: {"a": [30.0], "b": [1.0]}, 10: {"a": [2.0, 4.0]}, 100: {"a": [6.0], "b": [0.0]}})
    assert found == {"a: 100 / 10 shards": 2.0, "a: 1,000 / 100 shards": 5.0}


@pytest.mark.parametrize("acks_a_message", [None, 1])
def test_the_state_machine_alone_completes_checkpoints_with_all_shards_and_drops_old_ones(
    acks_a_message: int | None,
) -> None:
    driven = Alone(Fleet(250, acks_a_message=acks_a_message))
    for _ in range(alone.RETAINED + 2):
        driven.checkpoint()
    assert [manifest.id for manifest in driven.machine.checkpoints.retained.manifests] == [3, 4, 5]
    newest = driven.machine.checkpoints.retained.manifests[-1].operators[0].shards
    assert newest == tuple(handle(5, host, shard) for host, own in Fleet(250).hosts.items() for shard in own)


def test_the_memory_of_the_state_machine_stops_growing() -> None:
    early, before, last = alone.held(Fleet(20), (5, scale.REMEMBERED - 10, scale.REMEMBERED))
    assert before > 1.2 * early
    assert last < 1.02 * before


def test_a_run_counts_every_ack_over_the_link_and_the_manifest_has_every_shard() -> None:
    # Two hosts, one of which has a part of what the other has.
    measured = scale.measure((130,), checkpoints=1, turns=1, remembered=12)
    (costs,) = measured.costs[130]
    assert costs.checkpoint == alone.RETAINED + 1
    assert (costs.messages, costs.acks, costs.manifest_shards) == (2, 130, 130)
    assert costs.discard is not None
    found = measured.figures[130]
    assert {*COSTS.figures, figures.HELD, figures.GROWN, figures.ACKS_CPU_SINGLE} <= {*found}
    assert all(figure >= 0 for name in found for figure in found[name] if name != figures.GROWN)
