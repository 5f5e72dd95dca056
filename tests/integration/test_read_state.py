"""State is read out of checkpoints and savepoints as DataFrames, while the query runs and after it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator
from chandy.state import read_state
from chandy.state.errors import DefinitionError, NoSuchStateError
from chandy.storage import NothingHereError
from chandy.storage.backends.open import pipeline_uri

from ..waiting import DEADLINE
from .support import Events, Make

pytestmark = [pytest.mark.spark, pytest.mark.compat]

OUTPUT = "k string"


class Collector(StatefulProcessor):
    """Keeps the rows of a key in three ways."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", "n long, total long")
        self.values = handle.getListState("values", "v long")
        self.counts = handle.getMapState("counts", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            n, total = self.totals.get() or (0, 0)
            self.totals.update((n + 1, total + row.v))
            self.values.appendValue((row.v,))
            (count,) = self.counts.getValue((row.v,)) or (0,)
            self.counts.updateValue((row.v,), (count + 1,))
        return iter(())


def given(events: Events) -> dict[str, list[int]]:
    """The values of each key so far."""
    found: dict[str, list[int]] = {}
    for path in events.folder.glob("*.json"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found.setdefault(row["k"], []).append(row["v"])
    return found


def test_state_is_read_as_it_was_at_each_checkpoint_and_savepoint(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    coordinator = make()
    out = coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=Collector(), output=OUTPUT, uid="collector", shards=4
    )
    events.add(1)
    query = coordinator.start(out.writeStream.format("noop"), name="q")
    query.processAllAvailable()
    first, before = coordinator.checkpoint().result(DEADLINE).id, given(events)
    events.add(1)
    query.processAllAvailable()
    second, after = coordinator.checkpoint().result(DEADLINE).id, given(events)
    savepoint = str(tmp_path / "save")
    coordinator.savepoint(savepoint).result(DEADLINE)
    uri = pipeline_uri(str(tmp_path / "store"), "p")

    def totals(checkpoint: str | int, uri: str = uri) -> dict[str, tuple[int, int]]:
        rows = read_state(spark, uri, checkpoint, state="totals")
        assert rows.columns == ["k", "n", "total", "expires_at"]
        return {row.k: (row.n, row.total) for row in rows.collect()}

    def expected(rows: dict[str, list[int]]) -> dict[str, tuple[int, int]]:
        return {key: (len(values), sum(values)) for key, values in rows.items()}

    assert totals(first) == expected(before)
    assert totals("latest") == totals(second) == totals("latest", savepoint) == expected(after)
    coordinator.stop()

    # As any other data source, which ``read_state`` has made known to the session, and with the other kinds of state.
    lists: dict[str, dict[int, int]] = {}
    for row in spark.read.format("chandy").option("state", "values").load(uri).collect():
        lists.setdefault(row.k, {})[row.position] = row.v
    assert {key: sorted(values.values()) for key, values in lists.items()} == {
        key: sorted(values) for key, values in after.items()
    }
    assert all(sorted(values) == list(range(len(values))) for values in lists.values())
    counts = read_state(spark, uri, operator="collector", state="counts").collect()
    assert {(row.k, row.v): row.n for row in counts} == {
        (key, v): n for key, values in after.items() for v, n in Counter(values).items()
    }
    # One key is read from its shard alone.
    for state in ("totals", "values", "counts"):
        own = read_state(spark, uri, second, state=state, key="k3")
        assert own.rdd.getNumPartitions() == 1
        assert sorted(own.collect()) == sorted(
            read_state(spark, uri, second, state=state).where("k = 'k3'").collect()
        )
    assert read_state(spark, uri, state="totals", key={"k": "nobody"}).collect() == []
    parts = [read_state(spark, uri, state="totals", shards=[at]).count() for at in range(4)]
    assert sum(parts) == len(after)
    assert read_state(spark, uri, state="totals", shards={0, 2}).count() == parts[0] + parts[2]
    with pytest.raises(DefinitionError, match=r"the values of k, .* found \('k3', 5\)"):
        read_state(spark, uri, state="totals", key=("k3", 5))
    with pytest.raises(DefinitionError, match="no shards beside a key"):
        read_state(spark, uri, state="totals", key="k3", shards=[1])
    with pytest.raises(DefinitionError, match="some of the shards 0 to 3"):
        read_state(spark, uri, state="totals", shards=[])
    # A coordinator in another session finds the name taken, and goes on.
    config = CheckpointConfig(interval=None)
    elsewhere = str(tmp_path / "store")
    CheckpointCoordinator(spark.newSession(), pipeline="other", storage=elsewhere, config=config).stop()
    # Errors come as they are, before Spark runs anything.
    with pytest.raises(NoSuchStateError, match="'counts', 'totals', 'values'"):
        read_state(spark, uri)
    with pytest.raises(NothingHereError):
        read_state(spark, uri, 99, state="totals")
    rows = read_state(spark, uri, state="totals")
    with pytest.raises(AnalysisException, match=r"call SavepointWriter\.from_existing"):
        rows.write.format("chandy").option("state", "totals").mode("append").save(uri)
