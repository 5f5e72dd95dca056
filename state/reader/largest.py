"""Which keys of an operator have the most state: read from the shards of a checkpoint, one shard after the other."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import attrs
from rocksdict import Rdict

from ...storage.backends.open import open_store
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.checkpoints.restore import restore_files
from ...storage.disk.scratch import scratch_directory
from ..format import keyspace
from ..format.keys import KeyCodec
from ..format.schema import from_json
from .stored import MODES, TIMERS, opened, scan

_Entry = tuple[bytes, str, int]
"""A key, the name of a state, and how many bytes it has."""


@attrs.frozen
class KeySize:
    """How much state a key has."""

    key: dict[str, Any]
    """The values of the key columns, by name."""
    shard: int
    bytes: int
    """Of all entries, with their keys, before compression."""
    states: dict[str, int]
    """The same by state; timers are those of ``$timers``."""


def largest_keys(found: Located, operator: str, limit: int) -> list[KeySize]:
    """Return the keys of an operator that have the most state in a checkpoint, the largest first.

    All shards of the operator are downloaded, one at a time, and read once.

    Args:
        found: the checkpoint or savepoint.
        operator: its uid; if the checkpoint does not have it, there are no keys.
        limit: how many keys to return at most.

    Raises:
        DamagedError: a file is not as it was written.
        ObjectMissingError: a file is gone, because the pipeline's retention has dropped the checkpoint.
    """
    records = [record for record in found.manifest.operators if record.uid == operator]
    if not records:
        return []
    (record,) = records
    codec = KeyCodec(from_json(record.key_schema))
    latest = heapq.nlargest(limit, _sizes(found.store.uri, record), key=itemgetter(0))
    return [
        KeySize(dict(zip(codec.schema.names, codec.decode(key), strict=True)), shard, size, dict(states))
        for size, shard, key, states in latest
    ]


def _sizes(root: str, record: OperatorRecord) -> Iterator[tuple[int, int, bytes, Counter[str]]]:
    """Yield for each key how many bytes it has, its shard, the key, and the bytes of each state."""
    for number, handle in enumerate(record.shards):
        if handle is None:
            continue
        with scratch_directory("largest") as directory:
            restore_files(open_store(root), handle, directory)
            with opened(directory) as db:
                for key, states in _by_key(db, record):
                    yield states.total(), number, key, states


def _by_key(db: Rdict, record: OperatorRecord) -> Iterator[tuple[bytes, Counter[str]]]:
    # Only keys with a large list or map have further parts, so these are in memory; the rest is merged by key.
    parts: dict[bytes, Counter[str]] = {}
    for name in record.states:
        for where, data in scan(db, keyspace.part_prefix(name)):
            key = keyspace.owner_of(where)[1]
            parts.setdefault(key, Counter())[name] += len(where) + len(data)
    columns = [_values(db, name, name) for name in record.states]
    columns += [_values(db, f"{keyspace.HIDDEN}{mode} timers", TIMERS) for mode in MODES.values()]
    for key, entries in groupby(heapq.merge(*columns, key=itemgetter(0)), key=itemgetter(0)):
        yield key, _summed(entries) + parts.get(key, Counter())


def _values(db: Rdict, variable: str, name: str) -> Iterator[_Entry]:
    prefix = keyspace.value_prefix(variable)
    for where, data in scan(db, prefix):
        yield where[len(prefix) :], name, len(where) + len(data)


def _summed(entries: Iterable[_Entry]) -> Counter[str]:
    sizes = Counter[str]()
    for _, name, size in entries:
        sizes[name] += size
    return sizes
