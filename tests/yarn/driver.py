"""The driver on YARN: runs the steps whose names it reads, and answers each with a line of JSON.

``python -m tests.yarn.driver FOLDER STORE``: a local folder for the input, and a URI on the cluster's HDFS.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator
from chandy.coordinator.errors import ChandyError
from chandy.coordinator.query import CheckpointedQuery
from chandy.coordinator.spark.hadoop_folder import HadoopFolder

from ..integration.support import EVENTS, TOTALS, Events, Totals
from ..waiting import DEADLINE, eventually
from .session import session

ANSWER = "@ "
"""What a line of an answer begins with: Spark prints, too."""
SHARDS = 4

Answer = dict[str, Any]


class YarnDriver:
    """One pipeline of two queries: one with an operator of Chandy, one with Spark's own state."""

    def __init__(self, folder: Path, store: str) -> None:
        self.store = store
        self.spark = session()
        self.events = Events(folder / "in")
        self.totals: dict[str, tuple[int, int]] = {}
        self.counts: dict[str, int] = {}
        self.batches: Counter[int] = Counter()
        """How often each batch of the first query reached its sink."""
        self.coordinator: CheckpointCoordinator | None = None
        self.queries: list[CheckpointedQuery] = []

    # --- steps ----------------------------------------------------------------------------------------------

    def quick_start(self) -> Answer:
        self._begin()
        self._run(3)
        return self._answer()

    def restore(self) -> Answer:
        assert self.coordinator is not None
        self._run(1)
        self.coordinator.stop(checkpoint=False)
        work = HadoopFolder(self.spark, f"{self.store}/work")
        left = _left(work)
        self.batches.clear()
        self._begin()
        restored = self.coordinator.restored
        self._run(1)
        lives = sorted({name.partition("/")[0] for name in work.files_below()})
        return self._answer(
            restored=restored and restored.id,
            left=left,
            lives=len(lives),
            native=any("/state/" in name for name in work.files_below()),
        )

    def kill_executor(self) -> Answer:
        self._kill("YarnCoarseGrainedExecutorBackend", "--executor-id")
        self._run(2)
        return self._answer()

    def kill_host(self) -> Answer:
        self._run(1)
        self._kill("chandy.state.host")
        self._run(2)
        return self._answer()

    def refuse(self) -> Answer:
        """What executors cannot reach, and a file sink on HDFS, are refused in a sentence."""
        assert self.coordinator is not None
        found = []
        stream = self._stream()
        for path in ("/out", "file:///tmp/chandy-out"):
            try:
                self.coordinator.start(
                    stream.writeStream.format("parquet").option("path", path), name="files"
                )
            except ChandyError as error:
                found.append(str(error))
        try:
            CheckpointCoordinator(self.spark, pipeline="local", storage="/tmp/chandy-store")
        except ChandyError as error:
            found.append(str(error))
        return {"refused": found}

    def end(self) -> Answer:
        assert self.coordinator is not None
        self.coordinator.stop()
        left = _left(HadoopFolder(self.spark, f"{self.store}/work"))
        self.spark.stop()
        return {"left": left}

    # --- parts ----------------------------------------------------------------------------------------------

    def _stream(self) -> DataFrame:
        files = self.events.folder.as_uri()
        return self.spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json(files)

    def _begin(self) -> None:
        config = CheckpointConfig(interval=None, work_dir=f"{self.store}/work")
        made = CheckpointCoordinator(self.spark, pipeline="p", storage=self.store, config=config)
        totals = made.transform_with_state(
            self._stream(),
            key=["k"],
            processor=Totals(),
            output=TOTALS,
            uid="t",
            shards=SHARDS,
            parallelism=2,
        )
        counts = self._stream().groupBy("k").agg(f.count("*").alias("n"))
        self.coordinator, self.queries = (
            made,
            [
                made.start(self._writer(totals, "append", self._keep_totals), name="totals"),
                made.start(self._writer(counts, "complete", self._keep_counts), name="counts"),
            ],
        )

    @staticmethod
    def _writer(df: DataFrame, mode: str, keep: Callable[[DataFrame, int], None]) -> Any:
        return df.writeStream.outputMode(mode).foreachBatch(keep).trigger(processingTime="0 seconds")

    def _keep_totals(self, batch: DataFrame, number: int) -> None:
        self.batches[number] += 1
        self.totals |= {row.k: (row.n, row.total) for row in batch.collect()}

    def _keep_counts(self, batch: DataFrame, number: int) -> None:
        self.counts = {row.k: row.n for row in batch.collect()}

    def _run(self, files: int) -> None:
        """Have some more files counted, and checkpoint it."""
        assert self.coordinator is not None
        self.events.add(files)
        eventually(lambda: (self.totals, self.counts) == self._expected(), "the right answer")

    def _expected(self) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
        totals: dict[str, tuple[int, int]] = {}
        for path in sorted(self.events.folder.glob("*.json")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                n, total = totals.get(row["k"], (0, 0))
                totals[row["k"]] = n + 1, total + row["v"]
        return totals, {key: n for key, (n, _) in totals.items()}

    def _answer(self, **more: Any) -> Answer:
        assert self.coordinator is not None
        taken = self.coordinator.checkpoint().result(DEADLINE)
        again = sorted(batch for batch, times in self.batches.items() if times > 1)
        return {"exact": True, "batches": dict(taken.batches), "again": again, **more}

    def _kill(self, *words: str) -> None:
        """Kill one of this application's processes."""
        victims = _own(str(self.spark.sparkContext.applicationId), words)
        os.kill(victims[0], signal.SIGKILL)


def _left(folder: HadoopFolder) -> list[str]:
    """Return the files in a folder, but for those that state stores may still write when a query has stopped."""
    return [name for name in folder.files_below() if "/state/" not in name]


def _own(application: str, words: tuple[str, ...]) -> list[int]:
    """Return the processes in containers of an application whose command has all the words."""
    containers = f"CONTAINER_ID=container_{application.removeprefix('application_')}_"
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        is_own = any(variable.startswith(containers) for variable in variables)
        # YARN's shells have the same words in one argument.
        has_words = all(any(word in part and " " not in part for part in command) for word in words)
        if is_own and has_words:
            found.append(int(folder.name))
    return sorted(found)


def main(folder: Path, store: str) -> None:
    driver = YarnDriver(folder, store)
    print(f"{ANSWER}{json.dumps({'ready': True})}", flush=True)
    for line in sys.stdin:
        try:
            answer = getattr(driver, line.strip())()
        except Exception:  # noqa: BLE001 (the test that asked shows it)
            answer = {"error": traceback.format_exc()}
        print(f"{ANSWER}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
