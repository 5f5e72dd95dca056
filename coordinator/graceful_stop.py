"""The steps of a graceful stop: running batches commit, and a last checkpoint or a savepoint has them.

A stop that is to end again, if nobody takes the pipeline over, has the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs

from ..storage import runtime
from ..storage.checkpoints.manifest import CheckpointKind
from ..storage.errors import FencedError
from ..storage.ids import CheckpointId
from ..storage.logs import logger
from ..storage.long_waits import told_if_slow
from .checkpoint import Checkpoint
from .errors import ChandyError, NotSwitchedError
from .execution.executor import CheckpointExecutor
from .recovery.runs import Run
from .recovery.supervisor import Supervisor
from .suspension import Suspension

log = logger(__name__)

_INTERRUPT_SECONDS: Final = 1.0
"""From one interruption of what a stop waits for to the next."""
_STANDSTILL_SECONDS: Final = 60.0
"""How long the running batches of a standstill may take, and then its checkpoint."""


@attrs.frozen
class GracefulStop:
    """Stops the queries of a pipeline."""

    executor: CheckpointExecutor
    supervisor: Supervisor
    root: str
    """URI of the pipeline's store."""

    def stop(self, target: str | None, timeout: float, *, checkpoint: bool) -> Checkpoint | None:
        """Stop all queries, and return what was taken of what they have done.

        Args:
            target, timeout: as for ``stop_queries``.
            checkpoint: whether to take a last checkpoint if there is no savepoint.

        Raises:
            CheckpointError, PipelineFailedError: as there.
        """
        taken = self.stop_queries(target, timeout)
        return self.last_checkpoint(timeout) if taken is None and checkpoint else taken

    def stop_queries(self, target: str | None, timeout: float) -> Checkpoint | None:
        """Stop all queries and take a savepoint, if one was asked for; if it fails they run again.

        Args:
            target: URI of the savepoint; None: take none.
            timeout: seconds to wait for running batches, and again for the checkpoint before the savepoint.

        Raises:
            CheckpointError: the savepoint failed.
            PipelineFailedError: it failed, and the pipeline cannot go on.
        """
        stopped = self.supervisor.stop_gracefully(self.executor.protocol.downstream_first(), timeout)
        if target is None:
            return None
        if any(query.definition.sink.uids for query in self.supervisor.queries):
            # A savepoint publishes nothing. Now either can be restored: nothing is missing, nothing comes twice.
            self.last_checkpoint(timeout)
        try:
            return self.executor.request(CheckpointKind.SAVEPOINT, target=target, is_final=True).result()
        except BaseException:
            self.supervisor.resume(stopped)
            raise

    def last_checkpoint(self, timeout: float) -> Checkpoint | None:
        """Keep what the stopped queries have committed since the latest checkpoint; say so if that fails.

        Args:
            timeout: seconds to wait for it.

        Returns:
            The checkpoint; None if there was nothing to keep, or it failed.
        """
        batches = self.supervisor.current_batches()
        if self.executor.protocol.read(
            lambda state: state.life.is_over or state.checkpoints.retained.base_has(batches)
        ):
            return None
        try:
            return self.executor.request(CheckpointKind.MANUAL, is_final=True).result(timeout)
        except (ChandyError, TimeoutError) as error:
            if latest := self.executor.protocol.read(
                lambda state: state.checkpoints.retained.base_with(batches)
            ):
                log.warning(
                    "the last checkpoint is complete; the next start publishes its output", id=latest.id
                )
                return Checkpoint.of(latest, self.root)
            why = str(error) or f"it was not complete after {timeout:g} s"
            self.supervisor.leave_runs()
            log.warning(
                "no last checkpoint: if it cannot resume on this machine, the next start repeats the batches since the "
                "latest one",
                error=why,
            )
            return None


def end_growth(changing: runtime.Lock, end_waits: Callable[[], object]) -> None:
    """Return once no thread adds to a pipeline. From then on none does, because the pipeline stops.

    Args:
        changing: held by a thread that adds to it.
        end_waits: has the pipeline stop, and ends what such a thread waits for.
    """
    end_waits()
    with told_if_slow(log, "another thread that adds to the pipeline"):
        while not changing.acquire(timeout=_INTERRUPT_SECONDS):
            # Again: what that thread waits for may have begun since.
            end_waits()
    # A pipeline that was at rest runs again since.
    end_waits()
    changing.release()


class KeepsCheckpoint(Protocol):
    """Pins of a pipeline's checkpoints."""

    def hold(self, checkpoint: CheckpointId) -> object:
        """Keep one."""
        ...

    def release(self) -> None:
        """Keep none."""
        ...


@attrs.define
class QueriesAtRest:
    """Keeps the queries of a pipeline from running, until a shadow has taken it over. It is a ``Standstill``."""

    executor: CheckpointExecutor
    supervisor: Supervisor
    pins: KeepsCheckpoint
    """Keep the last checkpoint for a driver that follows from there."""
    follow: Callable[[CheckpointId, FencedError], None] | None
    """Has this driver follow its successor from a checkpoint on, or raises an error; None: it is to end."""
    _stopped: list[Run] = attrs.field(factory=list, init=False)
    _suspension: Suspension | None = attrs.field(default=None, init=False)

    def begin(self) -> CheckpointId:
        """Let the running batches commit, begin no other, and return the checkpoint that has all of them.

        Raises:
            CheckpointError, NotSwitchedError, StorageError: there is none, or it cannot be kept.
        """
        # A successor may end them at any moment.
        self._suspension = Suspension.begin(self.supervisor)
        self._stopped = self.supervisor.stop_gracefully(
            self.executor.protocol.downstream_first(), _STANDSTILL_SECONDS, for_good=False
        )
        last = self._last_checkpoint()
        if self.follow is not None:
            self.pins.hold(last)
        return last

    def _last_checkpoint(self) -> CheckpointId:
        batches = self.supervisor.current_batches()
        if base := self.executor.protocol.read(lambda state: state.checkpoints.retained.base_with(batches)):
            return base.id
        return self.checkpoint(is_final=True)

    def checkpoint(self, *, is_final: bool = False) -> CheckpointId:
        """Take a checkpoint; see ``Standstill``.

        Args:
            is_final: whether no batch runs any more.

        Raises:
            CheckpointError, NotSwitchedError: there is none.
        """
        asked = self.executor.request(CheckpointKind.MANUAL, is_final=is_final)
        try:
            return CheckpointId(asked.result(_STANDSTILL_SECONDS).id)
        except TimeoutError as error:
            raise NotSwitchedError(
                "the shadow cannot take the pipeline over",
                f"a checkpoint within {_STANDSTILL_SECONDS:g} s",
                "none",
                "look at what holds it up by `chandy top`",
            ) from error

    def end(self) -> None:
        """Start the queries again, with the batches after those.

        Raises:
            PipelineFailedError: the pipeline has failed for good meanwhile, or a query cannot be started.
        """
        try:
            self.supervisor.resume(self._stopped)
        finally:
            self.give_up()

    def hand_over(self, last: CheckpointId, error: FencedError) -> None:
        """Follow the shadow that leads now; if that cannot be, the queries end as those of any fenced driver."""
        if self.follow is not None:
            try:
                self.follow(last, error)
            except Exception as refused:  # noqa: BLE001 (whatever it is, the pipeline is led by another driver)
                log.warning("this driver ends: it cannot follow its successor", because=str(refused))
            else:
                return
        self.give_up(error)

    def give_up(self, error: FencedError | None = None) -> None:
        """Say of the queries what is so, and keep nothing.

        Args:
            error: why they have ended; None: nobody has claimed the pipeline.
        """
        if self._suspension is not None:
            self._suspension.end(error)
        self.pins.release()
