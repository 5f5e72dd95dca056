"""Has Spark commit the batch that a query's file sink has and its commit log has not, before the query is over.

A query that reads the output may have read that batch. After a restore it would come a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...storage import runtime
from ...storage.ids import BatchId
from ...storage.logs import logger
from ..execution.locked_protocol import LockedProtocol
from ..query import CheckpointedQuery
from ..spark import progress
from .launcher import Launcher
from .metrics import RecoveryMetrics
from .runs import Run

log = logger(__name__)

_ATTEMPTS: Final = 3
"""How often a query that is stopped is started again to commit a batch: it may be stopped in the next one."""
_SECONDS: Final = 30.0
"""How long such a batch may take. It is not computed again."""
_CAUSE: Final = "a stop between the sink's log and the commit log"


def committed_like_sink(
    run: Run,
    query: CheckpointedQuery,
    launcher: Launcher,
    protocol: LockedProtocol,
    clock: Callable[[], float],
) -> Run:
    """Start a query again, if need be, until its commit log has all that its sink has, and stop it.

    Args:
        run: the query's run, which was stopped.
        query: the query as its user sees it.
        launcher: starts and stops it.
        protocol: knows whether the pipeline must go back; then nothing is to be committed.
        clock: seconds since 1970.

    Returns:
        The newest run, which was stopped, too.
    """
    sink = run.definition.sink
    for _ in range(_ATTEMPTS):
        committed = progress.newest_committed(run.logs_as_known())
        if protocol.must_go_back() or not sink.is_ahead_of(committed):
            return run
        log.info("the batch commits that the sink has", query=query.name, batch=committed + 1)
        try:
            run = launcher.again(run)
            now = clock()
            launcher.start(run, query, RecoveryMetrics.begun(_CAUSE, now, now, in_place=True))
            run.await_commit(BatchId(committed + 1), runtime.monotonic() + _SECONDS)
        except Exception as error:  # noqa: BLE001 (the query is stopped all the same)
            log.warning("cannot commit the batch that the sink has", query=query.name, error=str(error))
        finally:
            launcher.stop(run)
    return run
