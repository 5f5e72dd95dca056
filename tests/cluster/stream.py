"""A running query on a cluster, whose output is compared with what it must be."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointCoordinator
from chandy.state.rpc.messages import HostHello

from .. import insides
from ..coordinator.channels.listed_files import listed, local
from ..integration.drivers import Output, add_file, answer, chained
from ..waiting import DEADLINE, eventually


def rows_in(folder: Path) -> Counter[Output]:
    """Return what Spark's readers find in the folder of a file sink now."""
    rows: Counter[Output] = Counter()
    with contextlib.suppress(OSError):
        for uri in listed(folder):
            rows.update(zip(*pq.read_table(local(uri)).to_pydict().values(), strict=True))
    return rows


class Stream:
    """A running query that chains the rows of files, one a batch."""

    def __init__(self, spark: SparkSession, coordinator: CheckpointCoordinator, folder: Path) -> None:
        self.coordinator, self._folder, self._files = coordinator, folder, 0
        (folder / "in").mkdir(parents=True)
        rows = chained(coordinator, spark, folder / "in")
        self.query = coordinator.start(
            rows.writeStream.format("parquet").option("path", str(folder / "out")), name="chained"
        )

    def add(self, files: int) -> None:
        for _ in range(files):
            add_file(self._folder / "in", self._files)
            self._files += 1

    def await_all(self, seconds: float = DEADLINE) -> None:
        """Wait until every row of every file is in the sink, exactly once."""
        wanted = answer(range(self._files))
        eventually(
            lambda: rows_in(self._folder / "out") == wanted, f"the output of {self._files} files", seconds
        )

    def life(self) -> tuple[str, str]:
        """What tells the query, as Spark runs it, from what it is after it has gone back or restarted."""
        (query,) = self.coordinator.queries
        return query.id, query.runId

    def hosts(self) -> list[HostHello]:
        """The state hosts that own shards."""
        owners = insides.protocol(self.coordinator).read(
            lambda state: [
                state.members.hosts[host]
                for host in state.queries["chained"].assignment.owners()
                if host in state.members.hosts
            ]
        )
        return sorted(owners, key=lambda hello: hello.machine)

    def machines(self) -> set[str]:
        """The machines that have a state host, with shards or without."""
        return insides.protocol(self.coordinator).read(
            lambda state: {hello.machine for hello in state.members.hosts.values()}
        )
