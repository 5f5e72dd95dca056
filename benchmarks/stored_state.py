"""An operator's keyed state, read out of a completed checkpoint in a storage: nothing of a running pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
from rocksdict import Rdict

from chandy.state.keys import KeyCodec
from chandy.state.memory import Memory
from chandy.state.schema import from_json
from chandy.state.shard import POSITION_KEY
from chandy.state.values import StateName, ValueCodec
from chandy.storage.catalog import Catalog
from chandy.storage.manifest import OperatorRecord
from chandy.storage.open import open_store, pipeline_uri
from chandy.storage.snapshots import restore_files

_MEMORY = 16 * 1024 * 1024
State = dict[tuple[Any, ...], tuple[Any, ...]]


def read_state(storage: str, pipeline: str, checkpoint: int, uid: str, state: str, scratch: Path) -> State:
    """Return one state variable of an operator by key, all shards together.

    Args:
        storage: as the coordinator was given it.
        pipeline: as the coordinator was given it.
        checkpoint: id of a completed checkpoint.
        uid: the operator.
        state: name of the state variable.
        scratch: a new directory, into which the shards are restored.
    """
    store = open_store(pipeline_uri(storage, pipeline))
    operator = next(one for one in Catalog(store).read(checkpoint).operators if one.uid == uid)
    found: State = {}
    for number, handle in enumerate(operator.shards):
        if handle is not None:
            restore_files(store, handle, scratch / str(number))
            found |= _shard(scratch / str(number), operator, state)
    return found


def _shard(directory: Path, operator: OperatorRecord, state: str) -> State:
    keys = KeyCodec(from_json(operator.key_schema))
    values = ValueCodec(from_json(operator.states[state]), StateName(operator.uid, state))
    prefix = msgpack.packb(state)
    options = Memory(_MEMORY).options()
    shard = Rdict(str(directory), options=options, column_families={"default": options})
    try:
        found: State = {}
        for key, value in shard.items():
            # In raw mode both are bytes, whatever the stub says.
            assert isinstance(key, bytes) and isinstance(value, bytes)
            if key != POSITION_KEY and key.startswith(prefix):
                found[keys.decode(key.removeprefix(prefix))] = values.decode(value)
        return found
    finally:
        shard.close()
