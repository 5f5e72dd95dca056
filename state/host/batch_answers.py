"""The coordinator's answers for batches: a host asks once per batch, for all of its tasks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from ...storage import runtime
from ...storage.ids import BatchId
from ..rpc.messages import AskBatch, BatchAnswer


class BatchAnswers:
    """The coordinator's answer for the newest batch of each query."""

    def __init__(self, host: str, ask: Callable[[AskBatch], BatchAnswer]) -> None:
        self._host = host
        self._ask = ask
        self._lock = runtime.lock()
        self._newest: dict[str, tuple[int, Future[BatchAnswer]]] = {}

    def get(self, query_id: str, batch: BatchId) -> BatchAnswer:
        """Return the answer for a batch. The first task asks for it, and the others wait.

        Raises:
            ChandyError: the coordinator refused or does not answer. The next task asks again.
        """
        future: Future[BatchAnswer] = runtime.future()
        with self._lock:
            newest, known = self._newest.get(query_id, (-1, None))
            if known is not None and newest == batch:
                waiting = known
            else:
                waiting = future
                if batch >= newest:
                    self._newest[query_id] = batch, future
        if waiting is future:
            try:
                future.set_result(self._ask(AskBatch(self._host, query_id, batch)))
            except Exception as error:  # noqa: BLE001 - all tasks that wait get it
                with self._lock:
                    if self._newest.get(query_id) == (batch, future):
                        del self._newest[query_id]
                future.set_exception(error)
        return waiting.result()

    def forget(self, query_id: str) -> None:
        """Drop the answer for a query that has ended."""
        with self._lock:
            self._newest.pop(query_id, None)
