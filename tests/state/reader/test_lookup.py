"""Values, lists and maps of one key, read as they lie in a shard; processors write them in ``test_processor.py``."""

from __future__ import annotations

import pytest
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from chandy.state.format import keyspace, parts
from chandy.state.format.packing import Packing
from chandy.state.format.parts import ListHeader, MapHeader
from chandy.state.format.schema import to_json
from chandy.state.format.values import StateName
from chandy.state.reader.lookup import lookup_state
from chandy.storage.checkpoints.manifest import StateKind, StateRecord

NAME = StateName("op", "s")
SCHEMA = StructType([StructField("n", LongType()), StructField("t", StringType())])
KEYS = StructType([StructField("at", LongType())])
PACKING, KEY_PACKING = Packing([SCHEMA], NAME), Packing([KEYS], NAME)
KEY = b"key"
WHERE = keyspace.value_prefix("s") + KEY
NOW = 1_000_000
VALUE = StateRecord((to_json(SCHEMA),))
LIST = StateRecord((to_json(SCHEMA),), StateKind.LIST)
MAP = StateRecord((to_json(SCHEMA),), StateKind.MAP, map_key=to_json(KEYS))


def part(number: int) -> bytes:
    return keyspace.part_key(keyspace.part_prefix("s"), number, KEY)


def rows(start: int, stop: int) -> bytes:
    return parts.join(PACKING.pack_row((n, str(n))) for n in range(start, stop))


@pytest.mark.parametrize("record", [VALUE, LIST, MAP])
def test_a_key_without_state_has_none(record: StateRecord) -> None:
    assert lookup_state(record, NAME, KEY, {}, NOW) is None


def test_a_value_is_a_row() -> None:
    shard = {WHERE: PACKING.pack_row((3, None))}
    found = lookup_state(VALUE, NAME, KEY, shard, NOW)
    assert found == Row(n=3, t=None)
    assert found.n == 3  # type: ignore[union-attr]


def test_what_has_expired_is_not_there() -> None:
    shard = {WHERE: PACKING.pack_row((3, "x"), NOW)}
    assert lookup_state(VALUE, NAME, KEY, shard, NOW - 1) == Row(n=3, t="x")
    assert lookup_state(VALUE, NAME, KEY, shard, NOW) is None


def test_a_list_has_its_parts_and_its_tail_in_order() -> None:
    shard = {WHERE: ListHeader(1, 3, None, rows(6, 8)).encode(), part(1): rows(0, 3), part(2): rows(3, 6)}
    assert lookup_state(LIST, NAME, KEY, shard, NOW) == [Row(n=n, t=str(n)) for n in range(8)]


def test_a_map_has_the_entries_of_all_its_parts() -> None:
    entries = {KEY_PACKING.pack_row((n,)): PACKING.pack_row((n, str(n))) for n in range(20)}
    inline = parts.join(item for entry in entries.items() for item in entry)
    expected = {(n,): Row(n=n, t=str(n)) for n in range(20)}
    assert lookup_state(MAP, NAME, KEY, {WHERE: MapHeader(inline=inline).encode()}, NOW) == expected
    shard = {WHERE: MapHeader(1, 20, len(inline)).encode()}
    for number in (0, 1):
        mine = [e for e in entries.items() if parts.bucket(e[0], 1) == number]
        shard[part(number)] = parts.join(item for entry in mine for item in entry)
    assert lookup_state(MAP, NAME, KEY, shard, NOW) == expected
