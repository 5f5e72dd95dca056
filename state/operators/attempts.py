"""What becomes of an error of a user's code or data: it fails the task, or it costs one key, which is given up.

An operator calls the user's code for many items at a time: keys, or timers. If anything fails between their rows and
their packed changes and the operator has ``DeadLetters``, what the attempt has changed is forgotten, and each half of
the items is tried by itself, until the failing ones are alone. So nothing is done for each key while all goes well, and
the code may see a key of a failed attempt again, as it does when Spark runs a task again.

Two errors are nobody's fault and fail the task: state that could not be read, and memory that is exhausted outside of
the user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, Protocol

import attrs
import numpy as np
import pyarrow as pa

from ...storage.logs import logger
from ..errors import ProcessorError, TooManyDeadLettersError, UserError
from ..format import keyspace
from ..format.arrow import BYTES
from ..format.keys import KeyCodec
from ..rpc.access import Entries, StateAccess
from ..user_code import raised
from .dead_letters import DeadLetters, GivenUpKey, Letter, letters_of
from .task_state import TaskState, sorted_by_shard

log = logger(__name__)

OnError = DeadLetters | Literal["fail"]
"""What becomes of an error of a user's code."""
Attempt = Callable[[int, int], Iterator[pa.RecordBatch]]
"""Calls the user's code for the items from the first to the last, not included: puts changes and yields output."""
_HOUR_MS: Final = 3_600_000


class Attempts(Protocol):
    """Calls a user's code, and decides what becomes of its errors."""

    def over(
        self, count: int, attempt: Attempt, give_up: Callable[[int], GivenUpKey]
    ) -> Iterator[pa.RecordBatch]:
        """Call the user's code for some items in order, and yield its output.

        Args:
            count: how many items there are.
            attempt: may be called again for some of them, once its changes have been forgotten.
            give_up: returns what a failing item loses, and puts changes that keep it from coming again.

        Raises:
            UserError: the code has failed, and nothing is given up for that.
        """
        ...

    def finish(self) -> None:
        """Put what was given up, after the last item."""
        ...


def attempts_of(
    on_error: OnError, state: TaskState, codec: KeyCodec, access: StateAccess, uid: str, batch: int
) -> Attempts:
    """Return how a task calls the user's code.

    Args:
        on_error: what becomes of errors.
        state: of the task.
        codec: of the operator's keys.
        access: the task's shards.
        uid: the operator's.
        batch: the batch's number.
    """
    if on_error == "fail":
        return FailTask()
    return GiveUpKeys(on_error, state, codec, access, uid, batch)


class FailTask:
    """Lets every error fail the task."""

    def over(
        self, count: int, attempt: Attempt, give_up: Callable[[int], GivenUpKey]
    ) -> Iterator[pa.RecordBatch]:
        """Call the user's code for all items at once."""
        return attempt(0, count)

    def finish(self) -> None:
        """Do nothing."""


@attrs.define
class GiveUpKeys:
    """Gives up the keys on which the user's code fails, and writes dead letters of what is lost."""

    _policy: DeadLetters
    _state: TaskState
    _codec: KeyCodec
    _access: StateAccess
    _uid: str
    _batch: int
    _letters: list[Letter] = attrs.field(factory=list, init=False)
    _earlier: int | None = attrs.field(default=None, init=False)
    """Letters of the last hour before this batch; None while nothing has asked for it."""

    def over(
        self, count: int, attempt: Attempt, give_up: Callable[[int], GivenUpKey]
    ) -> Iterator[pa.RecordBatch]:
        """Call the user's code, and yield the output of the items on which it does not fail.

        Raises:
            TooManyDeadLettersError: it fails too often.
        """
        return self._between(0, count, attempt, give_up)

    def finish(self) -> None:
        """Put the letters, and delete those that are too old."""
        now = self._access.times.timestamp_ms
        old = keyspace.due(keyspace.DEAD_LETTERS, now - self._policy.keep_ms - 1)
        for found in list(self._state.scan(*old)):
            self._state.put(Entries(found.shards, found.keys, pa.nulls(len(found), BYTES)))
        if not self._letters:
            return
        shards, keys, values = zip(
            *(letter.stored(number, now) for number, letter in enumerate(self._letters)), strict=True
        )
        self._state.put(
            sorted_by_shard(np.asarray(shards, np.int32), pa.array(keys, BYTES), pa.array(values, BYTES))
        )
        self._access.metrics.dead_letters += len(self._letters)
        log.warning(
            "the code of an operator has failed; dead letters have what was given up",
            operator=self._uid,
            batch=self._batch,
            letters=len(self._letters),
            first=self._letters[0].error,
        )

    def _between(
        self, first: int, last: int, attempt: Attempt, give_up: Callable[[int], GivenUpKey]
    ) -> Iterator[pa.RecordBatch]:
        found = self._tried(first, last, attempt)
        if isinstance(found, list):
            yield from found
        elif last - first == 1:
            self._write(give_up(first), found)
        else:
            middle = (first + last) // 2
            yield from self._between(first, middle, attempt, give_up)
            yield from self._between(middle, last, attempt, give_up)

    def _tried(self, first: int, last: int, attempt: Attempt) -> list[pa.RecordBatch] | Exception:
        """Return the output of some items, or why there is none; what was changed for it is forgotten then."""
        mark = self._state.mark()
        try:
            # Nothing may go out before all of it is known to be good.
            return list(attempt(first, last))
        except MemoryError:
            raise
        except Exception as error:
            self._state.go_back(mark)
            if not self._state.was_read:
                raise
            return error

    def _write(self, lost: GivenUpKey, failure: Exception) -> None:
        key = self._codec.shown(lost.key)
        place = f"{lost.method} of key {key}" if lost.method else f"key {key}"
        if isinstance(failure, UserError):
            error = failure
        else:
            told = raised(failure)
            error = ProcessorError(self._uid, self._batch, place, told.summary, told.traceback)
        self._letters += letters_of(lost, error, place, self._batch, self._access.times.offsets)
        found = len(self._letters)
        if found > self._policy.max_per_batch:
            raise self._too_many(f"{found} dead letters in batch {self._batch}", "batch", lost, error)
        if self._earlier is None:
            since = keyspace.timed_key(keyspace.DEAD_LETTERS, self._access.times.timestamp_ms - _HOUR_MS, b"")
            self._earlier = sum(map(len, self._state.scan(since, keyspace.after(keyspace.DEAD_LETTERS))))
        if self._earlier + found > self._policy.max_per_hour:
            raise self._too_many(f"{self._earlier + found} dead letters in an hour", "hour", lost, error)

    def _too_many(self, found: str, per: str, lost: GivenUpKey, error: UserError) -> TooManyDeadLettersError:
        limit = self._policy.max_per_batch if per == "batch" else self._policy.max_per_hour
        found = f"{found} in one task, more than max_per_{per}={limit}"
        return TooManyDeadLettersError(self._uid, found, self._codec.shown(lost.key), error)
