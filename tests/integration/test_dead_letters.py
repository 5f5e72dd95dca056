"""A key on which the code fails is given up, is read out of a checkpoint, and is fed back to the mended code."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy import DeadLetters, FilesSink, ProcessorFailedError, dead_letter_rows, read_state, stream_changes
from chandy.coordinator import FixedDelay
from chandy.coordinator.cli import main
from chandy.state.errors import DefinitionError
from chandy.storage.backends.open import pipeline_uri

from ..waiting import DEADLINE, eventually
from .support import EVENTS, TOTALS, Events, Make, Totals, last_totals, pids

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Broken(Totals):
    """Fails after it has changed the state and given out a row."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        given = list(rows)
        yield from super().handleInputRows(key, iter(given), timerValues)
        if any(row.v == 13 for row in given):
            raise ValueError("13 brings bad luck")


def failing(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """By file, which is a batch, the rows of the key that has a 13."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        rows = [(row["k"], row["v"]) for row in map(json.loads, path.read_text().splitlines())]
        key = next(k for k, v in rows if v == 13)
        found[path.name] = [row for row in rows if row[0] == key]
    return found


def test_letters_are_kept_once_read_and_fed_back_to_the_mended_code(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    uri, sink = pipeline_uri(str(tmp_path / "store"), "p"), FilesSink(str(tmp_path / "out"))

    def started(processor: Totals, **named: Any) -> tuple[Any, Any]:
        coordinator = make(restart=FixedDelay(attempts=5, delay="10 ms"))
        out = coordinator.transform_with_state(
            events.stream(spark),
            key=["k"],
            processor=processor,
            output=TOTALS,
            uid="totals",
            shards=4,
            **named,
        )
        return coordinator, coordinator.start(out.writeStream, name="q", sink=sink)

    coordinator, query = started(Broken(), on_error=DeadLetters())
    assert coordinator.largest("totals") == []
    events.add(2)
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    events.add(1)
    query.processAllAvailable()
    copied = FilesSink(str(tmp_path / "letters"), "json")
    replica = coordinator.replicate("totals", state="$dead_letters", to=copied, name="letters")
    # The pipeline goes on in a new process, or from its checkpoint, and the third batch may run again.
    (host,) = pids(coordinator)
    os.kill(host, signal.SIGKILL)
    events.add(1)
    # Between two runs there is none.
    eventually(lambda: getattr(query.lastProgress, "batchId", None) == 3, "the last batch")
    last = coordinator.checkpoint().result(DEADLINE)
    eventually(lambda: replica.status.checkpoint == last.id, "a copy of all letters")
    replica.stop()
    largest = coordinator.largest("totals", 3)
    assert len(largest) == 3
    assert largest[0].bytes == sum(largest[0].states.values()) >= largest[2].bytes > 0
    assert query.lastProgress.stateOperators[0].customMetrics["chandyDeadLetters"] in (0, 1)
    coordinator.stop()

    lost = failing(events.folder)
    letters = read_state(spark, uri, operator="totals", state="$dead_letters")
    assert letters.columns == [
        "k",
        "time",
        "batch",
        "number",
        "place",
        "error",
        "traceback",
        "rows",
        "offsets",
    ]
    found = sorted(letters.collect(), key=lambda row: row.batch)
    assert [(row.batch, row.k) for row in found] == [
        (at, rows[0][0]) for at, rows in enumerate(lost.values())
    ]
    assert {row.error.split(", at ")[0] for row in found} == {"ValueError: 13 brings bad luck"}
    # A batch takes a file, and the source counts those from 0.
    read = [None, *(f'{{"logOffset":{at}}}' for at in range(4))]
    assert [json.loads(row.offsets) for row in found] == [{"0": read[at : at + 2]} for at in range(4)]
    rows = dead_letter_rows(letters, EVENTS)
    assert sorted(map(tuple, rows.collect())) == sorted(row for some in lost.values() for row in some)
    # A letter says whose rows it has, so those of the initial state are not taken for the input's.
    initial = letters.withColumn("place", F.concat(F.lit("handleInitialState of "), "place"))
    assert dead_letter_rows(initial, EVENTS).isEmpty()
    assert dead_letter_rows(initial, EVENTS, of="initial state").count() == rows.count()
    wider = dead_letter_rows(letters, "v double, more string, k string").collect()
    assert {(row.more, type(row.v)) for row in wider} == {(None, float)}
    assert sum(row.v for row in wider) == sum(v for some in lost.values() for _, v in some)

    copies = spark.read.json(str(tmp_path / "letters")).collect()
    assert sorted((row.batch, row.k, row.error) for row in copies) == sorted(
        (row.batch, row.k, row.error) for row in found
    )
    stream = stream_changes(spark, uri, reader="again", operator="totals", state="$dead_letters")
    again = dead_letter_rows(stream, EVENTS, keep=["batch", "error"]).writeStream.format("parquet")
    again = again.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True)
    again.start(str(tmp_path / "again")).awaitTermination()
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "again")).collect())) == sorted(
        (row.batch, row.error, *given) for row in found for given in list(lost.values())[row.batch]
    )

    with pytest.raises(
        PythonException, match="expected types that the rows of dead letters fit: column 'k' is string"
    ):
        dead_letter_rows(letters, "k int").collect()
    for some in ("k", "rows"):
        with pytest.raises(DefinitionError, match="argument letters"):
            dead_letter_rows(letters.select(some), EVENTS)
    with pytest.raises(DefinitionError, match="argument of"):
        dead_letter_rows(letters, EVENTS, of="output")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="argument keep: expected some of k, time"):
        dead_letter_rows(letters, EVENTS, keep=["reason"])
    with pytest.raises(DefinitionError, match="columns that the rows do not have, found k"):
        dead_letter_rows(letters, EVENTS, keep=["k"])

    told = CliRunner().invoke(main, ["dead-letters", str(tmp_path / "store"), "--limit", "3"])
    assert told.exit_code == 0, told.output
    assert "operator totals: 4 dead letters, the latest 3 of them" in told.output
    assert told.output.count("ValueError: 13 brings bad luck") == 3
    latest = next(reversed(lost.values()))
    assert f'batch 3, key {{"k": "{latest[0][0]}"}}' in told.output
    assert f"source 0 is read from {read[3]} to {read[4]}" in told.output
    assert told.output.count("  row ") == sum(len(some) for some in list(lost.values())[1:])
    shown = json.loads(CliRunner().invoke(main, ["dead-letters", str(tmp_path / "store"), "--json"]).stdout)
    assert shown["operators"]["totals"]["letters"] == 4
    assert shown["operators"]["totals"]["shown"][0]["batch"] == 3
    assert {len(one["rows"]) for one in shown["operators"]["totals"]["shown"]} == {
        len(some) for some in lost.values()
    }

    told = CliRunner().invoke(main, ["history", str(tmp_path / "store")]).output
    assert told.count("checkpoint completed") >= 2
    assert told.index("manual, in") < told.index("state host") < told.index("has recovered")

    told = CliRunner().invoke(main, ["largest", str(tmp_path / "store"), "--limit", "3", "--json"])
    keys = json.loads(told.stdout)["operators"]["totals"]
    assert [(one["key"]["k"], one["bytes"]) for one in keys] == [(one.key["k"], one.bytes) for one in largest]
    assert "totals: " in CliRunner().invoke(main, ["largest", str(tmp_path / "store")]).output

    # Mended: what was lost is added to the input, and the totals are those of all rows.
    wanted = events.totals(spark)
    back = [row.asDict() for row in rows.collect()]
    coordinator, query = started(Totals())
    (events.folder / ".back").write_text("\n".join(map(json.dumps, back)))
    (events.folder / ".back").rename(events.folder / "99999.json")
    query.processAllAvailable()
    coordinator.checkpoint().result(DEADLINE)
    coordinator.stop()
    assert last_totals(spark.read.parquet(str(tmp_path / "out"))) == wanted


@pytest.mark.full(
    "state/operators/test_dead_letters.py::test_too_many_in_a_batch_fail_it_and_nothing_is_kept"
)
def test_too_many_letters_end_the_pipeline_with_the_last_of_them(
    make: Make, spark: SparkSession, events: Events, tmp_path: Path
) -> None:
    coordinator = make(restart=FixedDelay(attempts=5, delay="10 ms"))
    out = coordinator.transform_with_state(
        events.stream(spark),
        key=["k"],
        processor=Broken(),
        output=TOTALS,
        uid="totals",
        shards=4,
        parallelism=1,
        on_error=DeadLetters(max_per_hour=2),
    )
    events.add(3)
    query = coordinator.start(out.writeStream.format("noop"), name="q")
    with pytest.raises(ProcessorFailedError, match=r"max_per_hour=2[\s\S]*13 brings bad luck"):
        query.awaitTermination(DEADLINE)
    coordinator.stop()
    found = json.loads(CliRunner().invoke(main, ["history", str(tmp_path / "store"), "--json"]).stdout)
    assert [one["what"] for one in found["history"]["p"]][-1] == "failed for good"
    assert "max_per_hour=2" in found["history"]["p"][-1]["says"]
