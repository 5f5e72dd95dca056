"""The record of batches: what runs a committed batch of a query again as it was, and tells whether it gave the same.

Spark's offset entry says which records a batch has, by which clock and watermark. On the state of the batch before, it
runs as the same batch. A checkpoint keeps the records of its batches as one more file of the query's handle, from the
last batch of the checkpoint before on: that one tells which of two checkpoints with the same cut it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Any, Final

import attrs

from ..codec import from_json_of_any_version, to_sealed_json
from ..ids import NO_BATCH, BatchId

BATCHES: Final = "batches"
"""Where in a query's snapshot the records are."""
RECORDS_FILE: Final = f"{BATCHES}/records.json"
"""Name of the file with the records in a query's snapshot."""
# The type of attrs' validators would make an int of the id.
_COUNT: Final[Any] = attrs.validators.ge(0)
_DIGITS: Final = 32
_MODULUS: Final = 1 << 4 * _DIGITS
_COLUMN_MODULUS: Final = 1 << 64


@attrs.frozen
class Digest:
    """What a sink got of a batch, whatever the order of its rows and their partitions. Digests of parts add up."""

    rows: int = attrs.field(default=0, validator=_COUNT)
    sum: str = attrs.field(default="0" * _DIGITS, validator=attrs.validators.matches_re(r"[0-9a-f]{32}"))
    """The 128-bit sum of the rows' hashes, in hex."""
    columns: dict[str, str] = attrs.field(factory=dict)
    """By column the 64-bit sum of its values' hashes, in hex, which tells where rows differ that nobody has kept. Empty
    if nobody took them."""

    @classmethod
    def of(cls, rows: int, total: int, columns: Mapping[str, int] = MappingProxyType({})) -> Digest:
        """Return the digest of so many rows, with the sum of their hashes, and perhaps those of columns."""
        sums = {name: f"{sum % _COLUMN_MODULUS:016x}" for name, sum in columns.items()}
        return cls(rows, f"{total % _MODULUS:0{_DIGITS}x}", sums)

    def __add__(self, other: Digest) -> Digest:
        columns = {
            name: int(self.columns.get(name, "0"), 16) + int(other.columns.get(name, "0"), 16)
            for name in {**self.columns, **other.columns}
        }
        return Digest.of(self.rows + other.rows, int(self.sum, 16) + int(other.sum, 16), columns)


NOTHING: Final = Digest()
"""The digest of no rows."""


def total(digests: Iterable[Digest]) -> Digest:
    """Return the digest of all rows together."""
    return reduce(add, digests, NOTHING)


@attrs.frozen
class BatchRecord:
    """A committed batch of a query."""

    batch: BatchId = attrs.field(validator=_COUNT)
    offsets: str
    """The entry of Spark's offset log, as logged."""
    sources: dict[str, str] = attrs.field(factory=dict)
    """The entries of the sources' own logs that belong to the batch, by their path in the working directory, such as
    ``sources/0/17``. An entry that Spark has compacted is here as it was before."""
    outputs: dict[str, Digest] = attrs.field(factory=dict)
    """What went out, by the uid of the sink; empty if nobody took digests."""


@attrs.frozen
class BatchRecords:
    """Batches of one query, one after the other."""

    after: BatchId = NO_BATCH
    """The batch behind which they begin. A later one that has no record has lost it."""
    batches: tuple[BatchRecord, ...] = ()
    """By ascending numbers."""

    def missing(self, up_to: BatchId) -> tuple[BatchId, ...]:
        """Return the batches up to one that have no record."""
        known = {record.batch for record in self.batches}
        return tuple(batch for batch in map(BatchId, range(self.after + 1, up_to + 1)) if batch not in known)


def encode(records: BatchRecords) -> bytes:
    """Return records as sealed JSON: equal records give equal bytes."""
    return to_sealed_json(records)


def decode(data: bytes) -> BatchRecords:
    """Return the records in what ``encode`` gave.

    Raises:
        CodecError, UnfitError: it is something else.
    """
    return from_json_of_any_version(BatchRecords, data)
