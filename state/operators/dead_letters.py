"""Dead letters: what an operator has given up because the user's code failed on it, kept in its shards.

They are entries of a shard like any other. So they are part of the batch that gives up the keys: a batch that runs
again writes them again, going back to a checkpoint takes them back, and checkpoints, standbys and moves have them.
They are stored by the time of their batch, which finds those of the last hour and those that are too old.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.ipc
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from ..errors import ProcessorError, UserError, invalid_argument
from ..format.keyspace import LETTERS, letter_key
from ..format.packing import Packing
from ..format.values import StateName
from ..user_code import storable, text_of

_FIRST: Final = (
    StructType()
    .add("place", StringType())
    .add("error", StringType())
    .add("traceback", StringType())
    .add("rows", BinaryType())
)
VERSIONS: Final = (_FIRST, StructType([*_FIRST.fields, StructField("offsets", StringType())]))
"""What a shard has of a letter, besides the time, the batch and the key: the schemas that were ever stored, the newest
last."""
INITIAL_STATE: Final = "handleInitialState"
"""How the place of a letter begins whose rows are those of the initial state."""
_TEXT: Final = 20_000
"""About the most characters of each text of a letter."""
_ROWS: Final = 1000
"""The most rows of a letter. A key that has more gets several."""
_ROW_BYTES: Final = 16 << 20
"""About the most bytes of the rows of a letter, unless it is one row that has more."""


def packing() -> Packing:
    """Return how letters are stored."""
    return Packing(VERSIONS, StateName("", LETTERS))


@attrs.frozen(kw_only=True)
class DeadLetters:
    """Gives up a key in a batch if the user's code fails on it, and keeps what is lost as dead letters.

    A letter has the key, its rows in the batch (at most 1,000; a key with more gets several), and the exception.
    Nothing of what the failing call has changed is kept, and nothing of its output goes out.

    The limits keep a broken release from giving up all that comes. They hold for each task of the operator, and what
    exceeds one fails the batch, as an error does without dead letters.
    """

    max_per_batch: int = 100
    """The most letters that a task may write in a batch."""
    max_per_hour: int = 1000
    """The most that a task may write in an hour, by the processing time of its batches."""
    keep: timedelta = timedelta(days=30)
    """How long the letters stay in the state, and in the checkpoints that have it."""

    def __attrs_post_init__(self) -> None:
        for name in ("max_per_batch", "max_per_hour"):
            found = getattr(self, name)
            if type(found) is not int or found < 1:
                raise invalid_argument(name, "a positive number of letters", repr(found))
        if not isinstance(self.keep, timedelta) or not timedelta(0) < self.keep <= timedelta(days=36_500):
            raise invalid_argument("keep", "a timedelta of at most 36,500 days", repr(self.keep))

    @property
    def keep_ms(self) -> int:
        """How long the letters stay, in milliseconds."""
        return self.keep // timedelta(milliseconds=1)


def check_on_error(on_error: object) -> None:
    """Refuse what says nothing of errors.

    Raises:
        DefinitionError: it is neither ``"fail"`` nor ``DeadLetters``.
    """
    if on_error != "fail" and not isinstance(on_error, DeadLetters):
        raise invalid_argument("on_error", "'fail' or DeadLetters(...)", repr(on_error))


@attrs.frozen(eq=False)
class GivenUpKey:
    """What a batch had for a key that is given up in it."""

    shard: int
    key: bytes
    """Canonical bytes of the key."""
    rows: pa.Table | None = None
    """Its rows; None if it was not for rows that the user's code was called."""
    method: str = ""
    """The processor's method that they are for, unless they are rows of the input."""


@attrs.frozen(eq=False)
class Letter:
    """A dead letter, as it is about to be stored."""

    shard: int
    key: bytes
    batch: int
    place: str
    """What was called: the key and the method, as far as they are known."""
    error: str
    """The exception, in one line."""
    traceback: str
    rows: bytes | None
    """See ``rows_of``."""
    offsets: str | None
    """See ``BatchTimes``; None if they are not known."""

    def stored(self, number: int, time_ms: int) -> tuple[int, bytes, bytes]:
        """Return the shard, the key and the value with which it is stored.

        Args:
            number: of the letter among those of its task and batch.
            time_ms: processing time of the batch.
        """
        where = letter_key(time_ms, self.batch, number, self.key)
        value = packing().pack_row((self.place, self.error, self.traceback, self.rows, self.offsets))
        return self.shard, where, value


def letters_of(
    lost: GivenUpKey, error: UserError, place: str, batch: int, offsets: str = ""
) -> Iterator[Letter]:
    """Yield the letters of what a key has lost in a batch with these offsets.

    Args:
        lost: the key and its rows.
        error: why it has lost them.
        place: what has failed, unless the error knows.
        batch: the batch's number.
        offsets: see ``BatchTimes``.
    """
    if isinstance(error, ProcessorError):
        place, summary, trace = error.where, error.summary, error.traceback
    else:
        trace = text_of(error)
        summary = trace.partition("\n")[0]
    place, summary, trace = (_cut(storable(text)) for text in (place, summary, trace))
    for rows in _parts(lost.rows):
        yield Letter(lost.shard, lost.key, batch, place, summary, trace, rows, offsets or None)


def _cut(text: str) -> str:
    """Return a text without its middle if it is very long: some exceptions have the data in their message."""
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]} ... {text[-_TEXT // 2 :]}"


def _parts(rows: pa.Table | None) -> Iterator[bytes | None]:
    if rows is None:
        yield None
        return
    step = max(1, min(_ROWS, len(rows) * _ROW_BYTES // max(rows.nbytes, 1)))
    for first in range(0, len(rows), step):
        some = rows.slice(first, step)
        stream = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(stream, some.schema, options=options) as writer:
            writer.write_table(some)
        yield stream.getvalue().to_pybytes()


def rows_of(data: bytes) -> pa.Table:
    """Return the rows of a letter, as the operator was given them.

    Args:
        data: the column ``rows`` of a letter: a stream in the IPC format of Apache Arrow.
    """
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
