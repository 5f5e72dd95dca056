"""What an operator may change between two starts, and what it takes up of a checkpoint."""

import attrs
import pytest
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from chandy.barrier.gate import Gate
from chandy.coordinator.errors import RestoreError, StateSchemaError
from chandy.coordinator.protocol.query_state import QueryState
from chandy.coordinator.protocol.shard_assignment import ShardAssignment
from chandy.coordinator.restore.restore_point import RestorePoint, check_operator
from chandy.storage.checkpoints.manifest import Handle, OperatorRecord, QueryRecord, StateRecord
from chandy.storage.ids import BatchId

from ...builders import make_manifest

KEY = StructType().add("k", StringType()).json()
COUNT = StructType().add("n", IntegerType())
WIDE = StructType().add("n", LongType()).add("total", DoubleType())
TEXT = StructType().add("n", ArrayType(StringType()))


def record(schema):
    return StateRecord((schema.json(),))


def operator(shards=4, **states):
    return OperatorRecord(
        "delays", "", KEY, {name: record(s) for name, s in states.items()}, (None,) * shards
    )


def restored(was):
    stored = attrs.evolve(was, query="q", shards=tuple(Handle() for _ in was.shards))
    return RestorePoint(
        make_manifest(queries=(QueryRecord("q", 4, Handle()),), operators=(stored,)), "file:///p"
    )


def test_an_operator_that_the_checkpoint_does_not_have_is_as_it_is_declared():
    declared = operator(count=COUNT)
    assert check_operator(None, declared) == declared
    assert check_operator(restored(attrs.evolve(declared, uid="other")), declared) == declared


def test_of_a_query_those_operators_were_restored_that_it_has_and_had():
    was = operator(count=COUNT)
    point = restored(was)
    (stored,) = point.manifest.operators
    new = attrs.evolve(was, uid="new")
    assert point.operators("q", [new, operator(count=WIDE)]) == (stored,)
    assert point.operators("other", [was]) == ()


@pytest.mark.parametrize("shards", [1, 3, 5, 8])
def test_another_number_of_shards_is_refused(shards):
    with pytest.raises(RestoreError, match="shards=4") as refused:
        check_operator(restored(operator(count=COUNT)), operator(shards, count=COUNT))
    assert (refused.value.expected, refused.value.found) == ("4 shards", str(shards))


def nested(nullable, **metadata):
    """Key columns of every shape, all of whose parts can be null or all not."""
    inner = StructType().add("at", TimestampType(), nullable, metadata).add("n", LongType(), nullable)
    schema = StructType().add("k", StringType(), nullable, metadata).add("window", inner, nullable)
    return schema.add("several", ArrayType(inner, nullable), nullable)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (nested(True), nested(False)),
        (nested(False), nested(True)),
        # The delay of a watermark.
        (nested(True), nested(True, **{"spark.watermarkDelayMs": 10_000})),
        (nested(True, **{"spark.watermarkDelayMs": 10_000}), nested(True, **{"spark.watermarkDelayMs": 5})),
    ],
)
def test_a_key_is_the_same_whatever_can_be_null_in_it_and_whatever_its_metadata(was, now):
    declared = attrs.evolve(operator(), key_schema=now.json())
    point = restored(attrs.evolve(operator(), key_schema=was.json()))
    assert check_operator(point, declared) == declared


KEYS = StructType().add("k", StringType()).add("n", StructType().add("at", LongType()))


@pytest.mark.parametrize(
    "now",
    [
        # Another name, type, order, number; and the same further inside.
        StructType().add("j", StringType()).add("n", StructType().add("at", LongType())),
        StructType().add("k", LongType()).add("n", StructType().add("at", LongType())),
        StructType().add("n", StructType().add("at", LongType())).add("k", StringType()),
        StructType().add("k", StringType()),
        StructType().add("k", StringType()).add("n", StructType().add("to", LongType())),
        StructType().add("k", StringType()).add("n", StructType().add("at", IntegerType())),
    ],
)
def test_another_key_is_refused(now):
    declared = attrs.evolve(operator(), key_schema=now.json())
    with pytest.raises(RestoreError, match="key columns"):
        check_operator(restored(attrs.evolve(operator(), key_schema=KEYS.json())), declared)


def test_a_state_that_changed_as_it_may_knows_all_its_schemas():
    point = restored(operator(count=COUNT, same=TEXT))
    record = check_operator(point, operator(count=WIDE, same=TEXT, new=TEXT))
    assert record.states["count"].versions == (COUNT.json(), WIDE.json())
    assert record.states["same"].versions == record.states["new"].versions == (TEXT.json(),)
    # The shards are those of the new run, which has not stored any.
    assert record.shards == (None,) * 4


def test_a_state_that_changed_otherwise_is_refused_with_both_schemas():
    with pytest.raises(StateSchemaError, match=r"n int .*found n array<string>"):
        check_operator(restored(operator(count=COUNT)), operator(count=TEXT))


def test_a_deleted_state_is_gone_also_if_no_batch_has_run_before_it_is_declared_again():
    def version(was, *dropped, **states):
        """The record of a version of the operator, and that in a checkpoint with each cut."""
        point = restored(was)
        now = check_operator(point, operator(**states), dropped)
        (held,) = point.manifest.operators
        query = QueryState("q", "id", Gate(4), (now,), BatchId(4), (held,), ShardAssignment(), (), BatchId(4))
        return now, *(query.operators_at(BatchId(cut))[0] for cut in (4, 5))

    was = operator(count=COUNT)
    now, at_once, later = version(was, "count", "unknown")
    assert (now.states, now.deleting) == ({}, {"count": 5})
    # Readers see what shards have.
    assert (at_once.states, at_once.deleting) == (was.states, {"count": 5})
    assert (later.states, later.deleting) == ({}, {})
    again, at_once, later = version(at_once, count=TEXT)
    assert (again.states, again.deleting) == (operator(count=TEXT).states, {"count": 5})
    assert (at_once.states, at_once.deleting) == (was.states, {"count": 5})
    assert (later.states, later.deleting) == (again.states, {})


def test_what_is_known_of_a_state_outlives_a_run_that_does_not_declare_it():
    was = operator(count=COUNT)
    between = check_operator(restored(was), operator())
    assert between.states == was.states
    with pytest.raises(StateSchemaError):
        check_operator(restored(between), operator(count=TEXT))
