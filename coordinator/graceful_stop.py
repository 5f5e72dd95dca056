"""The steps of a graceful stop: running batches commit, and a last checkpoint or a savepoint has them."""

from __future__ import annotations

import attrs

from ..storage.checkpoints.manifest import CheckpointKind
from ..storage.logs import logger
from .checkpoint import Checkpoint
from .errors import ChandyError
from .execution.executor import CheckpointExecutor
from .recovery.supervisor import Supervisor

log = logger(__name__)


@attrs.frozen
class GracefulStop:
    """Stops the queries of a pipeline."""

    executor: CheckpointExecutor
    supervisor: Supervisor
    root: str
    """URI of the pipeline's store."""

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
