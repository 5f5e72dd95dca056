"""``PipelineTester``: a pipeline of one query under test, on real Spark, with kills and restarts between batches."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from ..state.errors import invalid_argument
from ..state.format.schema import Schemas
from ..state.testing.rows import Given, table_of, tuples_of
from ..storage.ids import CheckpointId
from .batch_aggregate import BatchAggregate
from .checkpoint import Checkpoint
from .config import CheckpointConfig
from .coordinator import CheckpointCoordinator
from .durations import Duration, seconds
from .query import CheckpointedQuery
from .recovery.restart import FixedDelay
from .spark.session import is_local_mode
from .upgrade.break_at import BreakAt
from .upgrade.replay import Replay, ReplayDifference

Build = Callable[[CheckpointCoordinator, DataFrame], DataFrame | BatchAggregate]
"""Returns the output of a pipeline, given the stream of its input. It is called at each start, and by ``rescale``."""

PIPELINE: Final = "tested"
"""The name of the pipeline, and of its query."""
_PAUSE: Final = 0.02
"""Seconds between two looks at a pipeline that recovers."""
_OLDEST: Final = 1_600_000_000
"""When the first file was modified, as far as Spark knows: it takes the oldest first."""


def pids(coordinator: CheckpointCoordinator) -> set[int]:
    """Return the ids of the processes of the state hosts that live."""
    return coordinator._executor.protocol.read(
        lambda state: {host.pid for host in state.members.hosts.values()}
    )


class PipelineTester:
    """Runs a pipeline of one query, batch by batch, and restarts it as often as a test wants.

    Checkpoints are taken when the test asks for one. Output is that of a target which goes back with the pipeline: what
    batches after the checkpoint have given is replaced by what they give when they run again.

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
            spark: a session in local mode, of two threads for instance.
            folder: an empty directory for input and checkpoints, or one to be made. The test deletes it.
            input: the schema of the rows.
            build: puts the pipeline together.
            config: how to checkpoint and restart; None: at no interval, with ten quick restarts.
            timeout: how long a batch may take.

        Raises:
            DefinitionError: the session is that of a cluster, or the directory is not empty.
            ChandyError: the pipeline cannot be started; another subclass says why.
        """
        if not is_local_mode(spark):
            # Its hosts may be on other machines, and their process ids those of anything on this one.
            raise invalid_argument("spark", "a session in local mode", f"master {spark.sparkContext.master}")
        self._spark = spark
        self._folder = Path(folder)
        self._schema = Schemas().resolve(input, "the input")
        self._build = build
        self._config = config or CheckpointConfig(interval=None, restart=FixedDelay("10 ms", attempts=10))
        self._seconds = seconds(timeout)
        self._files = 0
        self._batches: dict[int, list[Row]] = {}
        if self._folder.exists() and any(self._folder.iterdir()):
            raise invalid_argument("folder", "an empty directory, or none yet", str(folder))
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
            input = files.parquet(str(self._input))
            query = coordinator.start(
                build=lambda: self._build(coordinator, input).writeStream.foreachBatch(self._take),
                name=PIPELINE,
            )
        except BaseException:
            coordinator.stop(checkpoint=False)
            raise
        return coordinator, query

    def _take(self, rows: DataFrame, batch: int) -> None:
        # The pipeline may have gone back. Then later batches are still to come, and may have other input.
        kept = {number: found for number, found in self._batches.items() if number < batch}
        self._batches = kept | {batch: rows.collect()}

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
        newest = max(self._batches, default=-1)
        self._write(rows)
        self._await_all()
        return [row for batch in sorted(self._batches) if batch > newest for row in self._batches[batch]]

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

    # --- batches that were recorded -------------------------------------------------------------------------

    @staticmethod
    def replay(
        storage: str | Path,
        build: Callable[[CheckpointCoordinator], object],
        *,
        from_: int | str | None = None,
        to: int | str | None = None,
        pipeline: str | None = None,
        spark: SparkSession | None = None,
        keep: str | Path | None = None,
        may_write: bool = False,
        until_different: bool = False,
        ignore: Sequence[str] = (),
        break_at: BreakAt | None = None,
    ) -> list[ReplayDifference]:
        """Run the recorded batches of a pipeline again, and return where they give something else.

        A regression test with what has really come is one line::

            assert PipelineTester.replay("/data/chandy", my_pipeline.build, from_=41, to=57) == []

        The pipeline, which must have been run with ``CheckpointConfig(record_batches=True)`` or beside a shadow, is not
        touched. Its sources are read again. The replay ends with the first batch that differs or fails.

        Args:
            storage: of the pipeline, or a copy of it.
            build: starts the queries of the pipeline with a coordinator.
            from_: the checkpoint behind which it begins, by its id, or a savepoint by its URI; or ``"batch=53"``, with
                several queries ``"batch=totals:53"``: the newest checkpoint before that batch. None: the oldest.
            to: the checkpoint, the savepoint or the batch with which it ends. None: the latest.
            pipeline: its name; None: the storage has only one.
            spark: the session; None: the active one.
            keep: folder for the first rows and keys that differ, as Parquet.
            may_write: whether functions of ``foreachBatch`` and ``foreach`` are called, which write by themselves.
            ignore: names of fields that may differ, such as "totals.updated", as for ``Shadow``.
            until_different: whether halves of the stretch are tried, the later one first, each on the recorded state.
            break_at: a key in a batch, for which the processor then runs in this process, with a ``breakpoint()`` ahead
                of it. The replay ends with that batch, and runs only what it must before. None: no debugger.

        Raises:
            GivenBatchError: there is no such checkpoint or batch, a batch in between was not recorded, or there is
                nothing to compare.
            WriterError: a query writes by itself, or reads what cannot be read again.
            SourceLostError: a source no longer has the data.
        """
        found = Replay.of(
            str(storage),
            CheckpointId(from_) if isinstance(from_, int) else from_,
            CheckpointId(to) if isinstance(to, int) else to,
            name=pipeline,
            until_different=until_different,
            ignore=ignore,
            keep=None if keep is None else Path(keep),
            break_at=break_at,
        )

        def program() -> None:
            session = spark or SparkSession.active()
            with CheckpointCoordinator(session, pipeline=found.pipeline, storage=str(storage)) as coordinator:
                build(coordinator)

        result = found.by(program, may_write=may_write)
        if break_at is not None:
            found.debug()
        return result.differences

    # --- checkpoints and lives ------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Take a checkpoint."""
        return self.coordinator.checkpoint().result(self._seconds)

    def savepoint(self, name: str) -> Checkpoint:
        """Take a savepoint; ``restart(restore=savepoint.uri)`` goes back to it."""
        return self.coordinator.savepoint(name).result(self._seconds)

    def kill_hosts(self) -> None:
        """Kill the processes that keep state (SIGKILL), and wait until the pipeline has recovered by itself.

        Raises:
            ChandyError: it has failed for good; a subclass says why.
            TimeoutError: it takes too long.
        """
        owned, recoveries, killed = self._owned_shards(), self._recoveries(), pids(self.coordinator)
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._await(
            lambda: not killed & pids(self.coordinator), "the end of the state hosts has not been noticed"
        )
        if owned - self._owned_shards():
            self._await(lambda: self._recoveries() > recoveries, "the pipeline has not recovered")
        self._await_all()

    def restart(self, build: Build | None = None, *, restore: str | int = "latest") -> None:
        """Start the pipeline again from a checkpoint, as another driver does once this one has been killed.

        Batches since the checkpoint run again, and have done so when this returns.

        Args:
            build: puts a new version of the pipeline together; None: the same one.
            restore: as for ``CheckpointCoordinator``.

        Raises:
            ChandyError: the pipeline cannot be started, or does not fit the checkpoint; a subclass says why.
            TimeoutError: the batches take too long.
        """
        self.coordinator.stop(checkpoint=False)
        self._build = build or self._build
        self.coordinator, self.query = self._started(restore)
        self._await_all()

    def state(self, operator: str, *key: Any, name: str | None = None) -> Any:
        """Return what an operator has for a key, as ``CheckpointCoordinator.get``."""
        return self.coordinator.get(operator, key, name)

    def _owned_shards(self) -> set[tuple[str, int]]:
        return {(one.operator, one.shard) for one in self.coordinator.assignment() if one.machine is not None}

    def _recoveries(self) -> int:
        return sum(self.coordinator._supervisor.recovered.values())

    def _await(self, holds: Callable[[], bool], trouble: str) -> None:
        deadline = time.monotonic() + self._seconds
        while not holds():
            self.query.awaitTermination(_PAUSE)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{trouble} within {self._seconds:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.coordinator.stop(checkpoint=False)
