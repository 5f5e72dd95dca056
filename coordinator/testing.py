"""``PipelineTester``: a pipeline of one query under test, on real Spark, with kills and restarts between batches."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from ..state.format.schema import Schemas
from ..state.testing.rows import Given, table_of, tuples_of
from .batch_aggregate import BatchAggregate
from .checkpoint import Checkpoint
from .config import CheckpointConfig
from .coordinator import CheckpointCoordinator
from .durations import Duration, seconds
from .query import CheckpointedQuery
from .recovery.restart import FixedDelay

Build = Callable[[CheckpointCoordinator, DataFrame], DataFrame | BatchAggregate]
"""Returns the output of a pipeline, given the stream of its input. It is called at each start."""

PIPELINE: Final = "tested"
"""The name of the pipeline, and of its query."""
_OLDEST: Final = 1_600_000_000
"""When the first file was modified, as far as Spark knows: it takes the oldest first."""


class PipelineTester:
    """Runs a pipeline of one query, batch by batch, and restarts it as often as a test wants.

    Checkpoints are taken when the test asks for one. Output is seen as in a target that takes each batch once: a batch
    that runs again replaces what it gave before.

    Example::

        def build(coordinator, rows):
            return coordinator.aggregate(rows, by=["k"], uid="totals", n=("*", "count"))


        with PipelineTester(spark, tmp_path, "k string", build) as pipeline:
            assert pipeline.batch([("a",), ("a",)]) == [Row(k="a", n=2)]
            pipeline.checkpoint()
            pipeline.batch([("a",)])
            pipeline.restart()
            assert pipeline.batch([("a",)]) == [Row(k="a", n=4)]
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: str | Path,
        input: str | StructType,
        build: Build,
        *,
        config: CheckpointConfig | None = None,
        timeout: Duration = "2 min",
    ) -> None:
        """Start the pipeline.

        Args:
            spark: a session, of two local threads for instance.
            folder: an empty directory for input and checkpoints, which the test deletes.
            input: the schema of the rows.
            build: puts the pipeline together.
            config: how to checkpoint and restart; None: at no interval, with ten quick restarts.
            timeout: how long a batch may take.

        Raises:
            ChandyError: the pipeline cannot be started; a subclass says why.
        """
        self._spark = spark
        self._folder = Path(folder)
        self._schema = Schemas().resolve(input, "the input")
        self._build = build
        self._config = config or CheckpointConfig(interval=None, restart=FixedDelay("10 ms", attempts=10))
        self._seconds = seconds(timeout)
        self._files = 0
        self._returned = -1
        self._batches: dict[int, list[Row]] = {}
        self._input.mkdir(parents=True)
        self.coordinator, self.query = self._started("latest")

    @property
    def _input(self) -> Path:
        return self._folder / "input"

    def _started(self, restore: str | int) -> tuple[CheckpointCoordinator, CheckpointedQuery]:
        coordinator = CheckpointCoordinator(
            self._spark,
            pipeline=PIPELINE,
            storage=str(self._folder / "checkpoints"),
            config=self._config,
            restore=restore,
        )
        try:
            files = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
            output = self._build(coordinator, files.parquet(str(self._input)))
            query = coordinator.start(output.writeStream.foreachBatch(self._take), name=PIPELINE)
        except BaseException:
            coordinator.stop(checkpoint=False)
            raise
        return coordinator, query

    def _take(self, rows: DataFrame, batch: int) -> None:
        self._batches[batch] = rows.collect()

    # --- batches --------------------------------------------------------------------------------------------

    def batch(self, rows: Given) -> list[Row]:
        """Put rows into one batch, and return what goes out of it, and out of batches without rows after it.

        Args:
            rows: each a tuple in the order of the input's columns, or a dict by their names; what a dict lacks is null.

        Raises:
            DefinitionError: the rows do not fit the input.
            ChandyError: the query has failed for good; a subclass says why.
            TimeoutError: the batch takes too long.
        """
        self._write(rows)
        self._await_all()
        new = [batch for batch in sorted(self._batches) if batch > self._returned]
        self._returned = max(new, default=self._returned)
        return [row for batch in new for row in self._batches[batch]]

    def output(self) -> list[Row]:
        """Return all that has gone out, in the order of the batches."""
        return [row for batch in sorted(self._batches) for row in self._batches[batch]]

    def _write(self, rows: Given) -> None:
        """Let a file appear, as a whole."""
        hidden = self._input / f".{self._files:06}"
        pq.write_table(table_of(tuples_of(rows, self._schema), self._schema), hidden)
        os.utime(hidden, (_OLDEST + self._files,) * 2)
        hidden.rename(self._input / f"{self._files:06}.parquet")
        self._files += 1

    def _await_all(self) -> None:
        """Wait until the query has taken all that there is."""
        done: Future[None] = Future()

        def wait() -> None:
            try:
                self.query.processAllAvailable()
                done.set_result(None)
            except Exception as error:  # noqa: BLE001 (it is raised where it is waited for)
                done.set_exception(error)

        threading.Thread(target=wait, name="chandy-test-batch", daemon=True).start()
        try:
            done.result(self._seconds)
        except TimeoutError:
            raise TimeoutError(
                f"the query has not taken all of its input within {self._seconds:g} s"
            ) from None

    # --- checkpoints and lives ------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Take a checkpoint."""
        return self.coordinator.checkpoint().result(self._seconds)

    def savepoint(self, name: str) -> Checkpoint:
        """Take a savepoint; ``restart(restore=savepoint.uri)`` goes back to it."""
        return self.coordinator.savepoint(name).result(self._seconds)

    def kill_hosts(self) -> None:
        """Kill the processes that keep state (SIGKILL). The pipeline recovers by itself, as in production."""
        for pid in self.coordinator._executor.machine.read(
            lambda machine: {host.pid for host in machine.members.hosts.values()}
        ):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def restart(self, build: Build | None = None, *, restore: str | int = "latest") -> None:
        """Start the pipeline again from a checkpoint, as another driver does once this one has been killed.

        Batches since the checkpoint run again.

        Args:
            build: puts a new version of the pipeline together; None: the same one.
            restore: as for ``CheckpointCoordinator``.

        Raises:
            ChandyError: the pipeline cannot be started, or does not fit the checkpoint; a subclass says why.
        """
        self.coordinator.stop(checkpoint=False)
        self._build = build or self._build
        self.coordinator, self.query = self._started(restore)

    def state(self, operator: str, *key: Any, name: str | None = None) -> Any:
        """Return what an operator has for a key, as ``CheckpointCoordinator.get``."""
        return self.coordinator.get(operator, key, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.coordinator.stop(checkpoint=False)
