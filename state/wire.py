"""The Arrow exchange between a task and a state host: one stream for a task's whole access to its shards.

The client sends batches of ``REQUEST`` rows, sorted by shard; the metadata of a message says what it asks:

* ``FETCH``: the values of the keys. The host answers with ``ANSWER`` rows in the same order, null for a key
  that is not there. The value column of the request is null.
* ``APPLY``: changes, null deletes. The host collects them and answers nothing.
* ``COMMIT``: no rows. The host stages all collected changes and answers with metadata ``STAGED``. Without
  it, a stream that ends changes nothing: a client that was killed looks exactly like one that has finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

REQUEST: Final = pa.schema([("shard", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
ANSWER: Final = pa.schema([("value", pa.binary())])

FETCH: Final = b"fetch"
APPLY: Final = b"apply"
COMMIT: Final = b"commit"
STAGED: Final = b"staged"

ROWS: Final = 16 * 1024
"""Rows in a message, at most."""
BYTES: Final = 16 * 1024 * 1024
"""Bytes in a message of changes, about, as long as single rows are smaller."""


def runs(shards: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Iterator[tuple[int, int, int]]:
    """Yield (shard, start, stop) for each stretch of rows of one shard."""
    if not len(shards):
        return
    starts = [0, *(np.flatnonzero(shards[1:] != shards[:-1]) + 1).tolist()]
    stops = [*starts[1:], len(shards)]
    yield from zip(shards[starts].tolist(), starts, stops, strict=True)
