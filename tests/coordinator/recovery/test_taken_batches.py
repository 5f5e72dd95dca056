"""A batch that a foreachBatch function has not taken does not commit."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import BatchSkippedError
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.protocol import events
from chandy.coordinator.query import Definition
from chandy.coordinator.recovery.runs import Run
from chandy.coordinator.recovery.taken_batches import TakenBatches, is_followed, needed_operators
from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.spark.writer_facts import SinkFacts, SourceFacts, Trigger, WriterFacts
from chandy.state.rpc.messages import AskBatch
from chandy.storage.checkpoints.manifest import OperatorRecord

from ...effort import trying
from ..protocol.bench import Bench

FACTS = WriterFacts(
    SinkFacts("foreachBatch"),
    "append",
    Trigger.PROCESSING_TIME,
    operators=("both", "second"),
    inputs={"both": (0, 1), "second": (1,)},
    sources=(
        SourceFacts("json", True),
        SourceFacts("kafka", True, label="clicks"),
        SourceFacts("rate", True),
    ),
)
OPERATORS = (OperatorRecord("both", "up", "{}", {}, (None,)),)
DEFINITION = Definition("up", None, None, FACTS, AtLeastOnceSink("foreachBatch"), OPERATORS, ())  # type: ignore[arg-type]


def plan(directory: Path, batch: int, *offsets: str) -> None:
    (directory / "offsets").mkdir(exist_ok=True)
    (directory / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *offsets]))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A query that has committed batch 4, and has data in batch 5 and none in batch 6."""
    for batch, first in ((4, "a"), (5, "b"), (6, "b")):
        plan(tmp_path, batch, first, "-", str(batch))
    return Bench()


def check(bench: Bench, directory: Path, batch: int, query_id: str = "up-id") -> bool:
    """Check a batch; return whether all of its rows were taken."""
    run, rows = Run(1, DEFINITION, directory, query_id), MagicMock()
    TakenBatches(run, LockedProtocol(bench.machine, lambda: 0.0)).check(rows, batch)
    return bool(rows.mock_calls)


def test_a_batch_that_deletes_a_state_is_taken_as_a_whole(bench: Bench, tmp_path: Path) -> None:
    query = bench.machine.queries["up"]
    query.operators = (attrs.evolve(OPERATORS[0], deleting={"old": 5}),)
    bench(events.BatchAsked(AskBatch("a", "up-id", 5)))
    assert check(bench, tmp_path, 5)
    assert not check(bench, tmp_path, 6)
    # Spark is ending a run that another has replaced.
    assert not check(bench, tmp_path, 5, query_id="before")


def test_a_batch_with_data_that_no_shard_has_begun_is_refused(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(BatchSkippedError, match=r"batch 5 .*'both'.*rows\.persist\(\).*raise") as caught:
        check(bench, tmp_path, 5)
    assert caught.value.operators == ("both",)
    bench(events.BatchAsked(AskBatch("a", "up-id", 5)))
    check(bench, tmp_path, 5)


def test_what_may_run_no_operator_is_no_skipped_batch(bench: Bench, tmp_path: Path) -> None:
    check(bench, tmp_path, 6)
    # Spark is ending a run that another has replaced.
    check(bench, tmp_path, 5, query_id="before")
    (tmp_path / "offsets" / "4").unlink()
    # Nobody can tell any more.
    check(bench, tmp_path, 5)


def test_the_first_batch_has_data_of_what_has_given_any(bench: Bench, tmp_path: Path) -> None:
    plan(tmp_path, 0, "-", "-", "3")
    bench.machine.queries["up"].gate.passed = -1
    check(bench, tmp_path, 0)
    plan(tmp_path, 0, "-", "1", "3")
    with pytest.raises(BatchSkippedError) as caught:
        check(bench, tmp_path, 0)
    assert caught.value.operators == ("both", "second")


@trying(50)
@given(
    inputs=st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 3)).map(tuple)),
    data=st.sets(st.integers(0, 3)),
    named=st.sets(st.integers(0, 3)),
)
def test_an_operator_is_needed_exactly_if_it_reads_what_has_data(
    inputs: dict[str, tuple[int, ...]], data: set[int], named: set[int]
) -> None:
    sources = tuple(SourceFacts("json", True, label=f"s{at}" if at in named else "") for at in range(4))
    facts = attrs.evolve(FACTS, inputs=inputs, sources=sources)
    moved = frozenset(f"s{at}" if at in named else str(at) for at in data)
    assert set(needed_operators(facts, moved)) == {uid for uid, read in inputs.items() if data & set(read)}


def test_only_functions_of_users_over_operators_are_followed() -> None:
    assert is_followed(DEFINITION)
    assert not is_followed(attrs.evolve(DEFINITION, operators=()))
    assert not is_followed(attrs.evolve(DEFINITION, facts=attrs.evolve(FACTS, sink=SinkFacts("noop"))))
