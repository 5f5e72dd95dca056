"""The messages of an epoch: where a task leaves its own, what the manifest says of all, and how they are read.

A small message travels in the manifest. A large one is an object in the pipeline's store, as staged rows are.
"""

from __future__ import annotations

import base64
import hashlib
import pickle
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
from pyspark.sql.datasource import WriterCommitMessage

from ....storage.backends.open import open_store
from ....storage.checkpoints.manifest import FileRef
from ....storage.checkpoints.restore import read_file
from ....storage.codec import from_json_of_any_version, to_json
from ....storage.errors import CodecError
from ...sinks.two_phase.contract import Epoch, Staged, WriteContext
from ...sinks.two_phase.errors import OutputError
from ...sinks.two_phase.staged import StagedRows

INLINE_BYTES: Final = 4 << 10
"""The largest message that travels in the manifest."""
_INLINE: Final = "="
"""How the note of a message begins that is in the note itself, as base64."""
_STORED: Final = "@"
"""How the note of a message begins that is in the store whose URI follows."""


@attrs.frozen
class Messages:
    """What the manifest says of an epoch."""

    schema: str
    """The rows' schema, as Spark's JSON."""
    notes: tuple[str, ...]
    """The notes of what was staged, by batch and partition."""

    def encode(self) -> str:
        """Return the text for the manifest."""
        return to_json(self).decode()


def keep(rows: int, message: bytes, context: WriteContext) -> Staged:
    """Keep a task's pickled message."""
    if len(message) <= INLINE_BYTES:
        return Staged(rows, note=_INLINE + base64.b64encode(message).decode())
    name = context.new_name(".message")
    key = f"{context.folder}{name}"
    open_store(context.store).write(key, message)
    file = FileRef(name, key, len(message), hashlib.sha256(message).hexdigest())
    return Staged(rows, (file,), _STORED + context.store)


def of_epoch(epoch: Epoch, source: str) -> tuple[str, list[WriterCommitMessage]]:
    """Read the schema and the messages of an epoch.

    Raises:
        OutputError: another sink has written the epoch, or a message cannot be read any more.
        DamagedError, ObjectMissingError: an object is not as it was written.
        StoreFailedError: the store cannot be read.
    """
    try:
        found = from_json_of_any_version(Messages, epoch.record.note.encode())
    except CodecError as error:
        raise OutputError(
            f"epoch {epoch.id} cannot be committed by data source {source!r}",
            "messages of a stream writer",
            f"what another kind of sink has staged: {error}",
            "give this sink a uid of its own, and keep the other until its output is published",
        ) from error
    # No message is made of bytes that are not verified, nor before all others are there.
    stored = iter(list(StagedRows(epoch).files()))
    messages = [
        _load(base64.b64decode(note[1:]) if note.startswith(_INLINE) else next(stored), source, epoch.id)
        for note in found.notes
    ]
    return found.schema, messages


def of_staged(staged: Iterable[Staged], source: str) -> list[WriterCommitMessage]:
    """Read the messages of tasks, which no epoch has.

    Raises:
        As ``of_epoch``.
    """
    return [_load(_read(one), source, None) for one in staged if one.note]


def note_of(schema: str, staged: Sequence[Staged]) -> str:
    """Return what the manifest says of an epoch."""
    return Messages(schema, tuple(one.note[:1] if one.files else one.note for one in staged)).encode()


def _read(one: Staged) -> bytes:
    if one.note.startswith(_INLINE):
        return base64.b64decode(one.note[1:])
    (file,) = one.files
    return read_file(open_store(one.note[1:]), file)


def _load(data: bytes, source: str, epoch: int | None) -> WriterCommitMessage:
    try:
        message: WriterCommitMessage = pickle.loads(data)
    except Exception as error:
        of = "" if epoch is None else f" of epoch {epoch}"
        raise OutputError(
            f"a message{of} of data source {source!r} cannot be read",
            "its class where it was when the message was written",
            f"{type(error).__name__}: {error}",
            "put the class back until the pipeline has been stopped with all output committed",
        ) from error
    return message
