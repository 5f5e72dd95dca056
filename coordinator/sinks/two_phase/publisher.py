"""Publishes the epochs of one sink on a thread of its own: in order, each once, for as long as it takes.

Batches that are published at once are published on the thread that runs them, which waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import attrs

from ....storage import runtime
from ....storage.checkpoints.manifest import OutputRecord
from ....storage.checkpoints.proof import FenceProof
from ....storage.errors import ChandyError, DamagedError, ObjectMissingError, StoreFailedError
from ....storage.ids import CheckpointId
from ....storage.logs import carried, logger
from ....storage.long_waits import Reminder
from ...errors import ConfigError
from ...permit import NOTHING_PERMITTED, Permits
from .contract import Batch, Committer, Epoch, Fence, TwoPhaseSink
from .errors import OutputError, OutputLostError, OutputTakenError, RewindError, TargetUnavailableError
from .staged import batches_of

log = logger(__name__)

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
"""Seconds between two attempts to reach a target: twice as many each time."""
_PUZZLED_SECONDS: Final = 300.0
"""For how long a target is tried that gives errors which nobody knows to pass."""


class _ClosedError(Exception):
    """The publisher has been closed while it waited for its target."""


@attrs.frozen
class _Task:
    """Epochs to publish, and what to do then."""

    epochs: tuple[Epoch, ...]
    then: Callable[[], None]


class Publisher:
    """One sink's way to its target, in one life of the coordinator."""

    def __init__(
        self,
        sink: TwoPhaseSink,
        fence: Fence,
        proof: FenceProof,
        *,
        on_failure: Callable[[ChandyError], None],
        permits: Permits = NOTHING_PERMITTED,
    ) -> None:
        """Make a publisher that has not connected.

        Args:
            sink: where to publish.
            fence: who publishes.
            proof: is checked before each act on the target, beside the fence that the target has itself.
            on_failure: called when an epoch cannot be published, and trying again will not help.
            permits: whether an output may be taken over.
        """
        self._sink = sink
        self._fence = fence
        self._proof = proof
        self._on_failure = on_failure
        self._permits = permits
        self._may_take_over = True
        self._committer: Committer | None = None
        self._known: CheckpointId | None = None
        """The newest epoch that the target was seen to have."""
        self._tasks: runtime.Queue[_Task | None] = runtime.simple_queue()
        # Held while the target is acted on: batches and epochs come from different threads.
        self._using = runtime.rlock()
        self._closing = runtime.flag()
        self._has_failed = False
        self._thread: runtime.Thread | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether the target may get again what it has: it is upserted by key."""
        return self._sink.publish == "batch"

    def begin(self, seconds: float, restored: OutputRecord | None = None) -> CheckpointId | None:
        """Connect, shut out earlier lives, and return the newest epoch that the target has.

        Args:
            seconds: how long to try at most while the target is not there.
            restored: what the checkpoint to begin from has of the sink; None: nothing.

        Raises:
            TargetUnavailableError: it is still not there.
            ChandyError: see ``TwoPhaseSink.recover``.
        """
        self._fence = attrs.evolve(self._fence, restored=restored)
        with self._typed():
            position = self._patiently(lambda committer: committer.position, seconds)
            self._known = None if position is None else CheckpointId(position)
        return self._known

    def recognised(self, epochs: Sequence[Epoch], seconds: float) -> Collection[int]:
        """Return the ids of those epochs that the target has as they are here, see ``Committer.recognised``.

        Args:
            epochs: by ascending ids.
            seconds: how long to try at most while the target is not there.
        """
        with self._typed():
            return self._patiently(lambda committer: committer.recognised(epochs), seconds)

    def check_rewind(self, epoch: CheckpointId | None, seconds: float) -> None:
        """Check that ``rewind`` would take back what was published after an epoch; nothing is changed.

        Args and raises as ``rewind``.
        """
        self._asked(lambda committer: committer.check_rewind(epoch), seconds)

    def rewind(self, epoch: CheckpointId | None, seconds: float) -> CheckpointId | None:
        """Take back what was published after an epoch, and return the newest that the target still has.

        Args:
            epoch: the newest that may stay; None: none.
            seconds: how long to try at most while the target is not there.

        Raises:
            RewindError: the target cannot do that. It has what it had.
            TargetUnavailableError: it is still not there.
        """
        return self._moved(lambda committer: committer.rewind(epoch), seconds)

    def check_bring_back(self, epoch: CheckpointId, seconds: float) -> None:
        """Check that ``bring_back`` would publish up to an epoch; nothing is changed.

        Args and raises as ``bring_back``.
        """
        self._asked(lambda committer: committer.check_bring_back(epoch), seconds)

    def bring_back(self, epoch: CheckpointId, seconds: float) -> CheckpointId | None:
        """Publish again what was taken back, up to an epoch, and return the newest that the target has then.

        Args:
            epoch: what the target had.
            seconds: how long to try at most while the target is not there.

        Raises:
            As ``rewind``.
        """
        return self._moved(lambda committer: committer.bring_back(epoch), seconds)

    def _asked(self, check: Callable[[Committer], None], seconds: float) -> None:
        with self._typed():
            self._patiently(check, seconds)

    def _moved(self, move: Callable[[Committer], None], seconds: float) -> CheckpointId | None:
        def act(committer: Committer) -> None:
            # An attempt without an answer may have done it.
            self._known = None
            move(committer)

        known = self._known
        try:
            with self._typed():
                self._patiently(act, seconds)
        except RewindError:
            self._known = known
            raise
        # The target may never have had an epoch of this very id.
        self._disconnect()
        return self.begin(seconds, self._fence.restored)

    def accept_loss(self, position: CheckpointId | None) -> None:
        """Go on although the target has lost what was published after a position."""
        self._known = position

    def publish_now(self, epochs: Sequence[Epoch], seconds: float) -> None:
        """Publish epochs on the caller's thread, before anything is published on the publisher's own.

        Raises:
            TargetUnavailableError: the target has been away for so many seconds.
            ChandyError: see ``Committer.commit``.
        """
        for epoch in epochs:
            self._publish(epoch, seconds)

    def publish(self, epochs: Sequence[Epoch], then: Callable[[], None]) -> None:
        """Publish epochs some time soon, after all that were given before.

        Args:
            epochs: by ascending ids.
            then: called on the publisher's thread when all of them are published.
        """
        if self._thread is None:
            self._thread = runtime.thread(target=carried(self._run), name=f"chandy-publish-{self._sink.uid}")
            self._thread.start()
        self._tasks.put(_Task(tuple(epochs), then))

    def upsert(self, batch: Batch, is_over: Callable[[float], bool]) -> bool:
        """Publish a batch on the caller's thread, for as long as it takes; return whether it is published.

        Args:
            batch: what is published by key.
            is_over: waits until the batch is not wanted any more, for at most so many seconds, and returns whether it
                is. Nothing is published once it is.

        Raises:
            ChandyError: see ``Committer.upsert``.
        """
        try:
            with self._typed(batch):
                self._patiently(lambda committer: committer.upsert(batch), None, is_over)
        except _ClosedError:
            return False
        except (DamagedError, ObjectMissingError, StoreFailedError):
            # The batch runs again, and stages its rows again.
            raise
        except ChandyError as error:
            self._on_failure(error)
            raise
        return True

    def close(self, seconds: float) -> bool:
        """Publish what was given, and end the connection; return whether all of it is published.

        Args:
            seconds: how long to wait at most. The next life publishes what is left.
        """
        self._tasks.put(None)
        if self._thread is not None:
            self._thread.join(seconds)
        is_over = self._thread is None or not self._thread.is_alive()
        self._closing.set()
        # A batch may still wait for an answer.
        if is_over and self._using.acquire(timeout=seconds):
            self._disconnect()
            self._using.release()
        return is_over and not self._has_failed

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                with self._typed():
                    for epoch in task.epochs:
                        self._publish(epoch)
                    task.then()
            except _ClosedError:
                return
            except ChandyError as error:
                # What comes after may not be published before it.
                log.error("cannot publish", sink=self._fence.writer, error=str(error))
                self._has_failed = True
                self._on_failure(error)
                return

    def _publish(self, epoch: Epoch, seconds: float | None = None) -> None:
        began = runtime.monotonic()

        def commit(committer: Committer) -> bool:
            if committer.position is not None and committer.position >= epoch.id:
                return False
            committer.commit(epoch)
            return True

        with self._typed(epoch):
            is_new = self._patiently(commit, seconds)
        if is_new:
            taken = round(runtime.monotonic() - began, 3)
            log.info("published", sink=self._fence.writer, epoch=epoch.id, rows=epoch.rows, seconds=taken)
        self._known = CheckpointId(epoch.id)

    def _patiently(
        self,
        act: Callable[[Committer], T],
        seconds: float | None,
        is_over: Callable[[float], bool] | None = None,
    ) -> T:
        """Act on the target, again and again while it is not there.

        Args:
            act: what to do with a connection.
            seconds: for how long; None: until it is over.
            is_over: as in ``upsert``; by default, whether the publisher is closed.
        """
        began, pause, reminder = runtime.monotonic(), _FIRST_PAUSE, Reminder(0.0)
        puzzled_since: float | None = None
        while True:
            try:
                with self._using:
                    # Under the lock, so that no batch of a run comes after one of the run that follows.
                    if is_over is not None and is_over(0.0):
                        raise _ClosedError
                    self._proof.check()
                    return act(self._connected())
            except (TargetUnavailableError, StoreFailedError) as error:
                self._disconnect()
                is_passing = isinstance(error, TargetUnavailableError) or error.transient
                waited = runtime.monotonic() - began
                if not is_passing or (seconds is not None and waited + pause > seconds):
                    raise
                if isinstance(error, StoreFailedError) or error.is_understood:
                    puzzled_since = None
                else:
                    puzzled_since = waited if puzzled_since is None else puzzled_since
                    if waited + pause - puzzled_since > _PUZZLED_SECONDS:
                        raise self._given_up(error, waited - puzzled_since) from error
                if reminder.is_due(waited):
                    log.warning(
                        "the output waits for its target",
                        sink=self._fence.writer,
                        seconds=round(waited),
                        error=str(error),
                    )
            if (is_over or self._closing.wait)(pause):
                raise _ClosedError
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _connected(self) -> Committer:
        if self._committer is None:
            self._committer = self._able(self._recovered())
            # A later generation must not lose the output to this one again.
            self._may_take_over = False
            position = self._committer.position
            if self._known is not None and (position is None or position < self._known):
                raise OutputLostError(
                    f"sink {self._fence.sink!r} of query {self._fence.query!r} cannot go on",
                    f"its target to have all that was published, up to epoch {self._known}",
                    "nothing of it" if position is None else f"it up to epoch {position}",
                    "put back what the target has lost and start the pipeline again; without it, a start says which "
                    "rows are lost for good, and what permits that",
                )
        return self._committer

    def _recovered(self) -> Committer:
        try:
            return self._sink.recover(self._fence)
        except OutputTakenError as error:
            if not self._may_take_over or not self._permits.use(error.wanted):
                error.advice += f": {self._permits.advice(error.wanted)}"
                raise
            return self._sink.recover(attrs.evolve(self._fence, may_take_over=True))

    def _able(self, committer: Committer) -> Committer:
        """Refuse a sink that cannot do what it says, before anything is published."""
        kind, where = type(committer), f"sink {self._fence.sink!r} of query {self._fence.query!r}"
        if self._sink.publish == "batch" and not _has(kind, "upsert"):
            committer.close()
            raise ConfigError(
                f"{where} cannot publish each batch",
                f'a committer with upsert(), because {type(self._sink).__name__} has publish="batch"',
                f"{kind.__name__}, which has none of its own",
                'implement Committer.upsert; or leave publish="batch" out, and rows appear with their checkpoint',
            )
        for act in ("rewind", "bring_back"):
            if _has(kind, act) and not _has(kind, f"check_{act}"):
                committer.close()
                raise ConfigError(
                    f"{where} cannot go back",
                    f"a committer that says before anything is changed whether {act}() will refuse",
                    f"{kind.__name__}, which has {act}() and no check_{act}()",
                    f"implement Committer.check_{act}; one that never refuses does nothing there",
                )
        return committer

    def _given_up(self, error: TargetUnavailableError, seconds: float) -> OutputError:
        return OutputError(
            f"sink {self._fence.sink!r} of query {self._fence.query!r} cannot publish",
            f"{error.target} to take the rows, or an error that is known to pass",
            f"{error.reason} (again and again for {seconds:.0f} s)",
            "remove the cause and start the pipeline again: what is complete is published then",
        )

    def _disconnect(self) -> None:
        with self._using:
            committer, self._committer = self._committer, None
            if committer is not None:
                committer.close()

    @contextmanager
    def _typed(self, rows: Epoch | Batch | None = None) -> Iterator[None]:
        """Give an error that a sink should have translated a type and a name, and let a refusal say of which rows.

        Args:
            rows: what is published; None: nothing.
        """
        where = "" if rows is None else f", while publishing {_named(rows)}"
        try:
            yield
        except OutputError as error:
            error.found += where
            raise
        except (ChandyError, _ClosedError):
            raise
        except Exception as error:
            self._disconnect()
            raise OutputError(
                f"sink {self._fence.sink!r} of query {self._fence.query!r} cannot publish",
                f"{self._sink.target} to take the rows, or an error of Chandy's that says why not",
                f"{type(error).__name__}: {error}{where}",
                "remove the cause and start the pipeline again: what is complete is published then",
            ) from error


def _has(kind: type[Committer], act: str) -> bool:
    return getattr(kind, act) is not getattr(Committer, act)


def _named(rows: Epoch | Batch) -> str:
    """Return which rows are published, for messages: their checkpoint and their batches, as far as that is known."""
    if isinstance(rows, Batch):
        return f"batch {rows.number}"
    batches = batches_of(rows.files)
    if not batches:
        return f"checkpoint {rows.id}"
    if len(batches) == 1:
        return f"checkpoint {rows.id} (batch {batches[0]})"
    return f"checkpoint {rows.id} (batches {batches[0]} to {batches[-1]})"
