"""Where the operator of aggregates over batches has rows combined, without Spark."""

from types import SimpleNamespace

import pytest

from chandy.coordinator.batch_aggregate import BatchOperator
from chandy.state.aggregation.combining import LARGE, MANY, Combined, PreAggregation
from chandy.state.operators.partitioning import by_id


class Repeated:
    """The tally of large batches whose keys repeat much."""

    def __init__(self):
        self.rows = 0

    def total(self):
        self.rows += 2 * LARGE
        return Combined(self.rows, int(self.rows / MANY / 2))


@pytest.fixture
def places(monkeypatch):
    """The places of the batches that an operator was given."""
    found = []
    monkeypatch.setattr(BatchOperator, "over", lambda self, given, place: found.append((given, place)))
    return found


def operator(combine="auto"):
    made = SimpleNamespace(partials="partials", tally=Repeated())
    return BatchOperator("sums", made, {}, combine, by_id, 1)


def test_sql_gets_the_partial_results_of_a_batch(places, monkeypatch):
    monkeypatch.setattr(BatchOperator, "_partial_results", lambda self, rows: f"partial {rows}")
    batches = operator()
    for batch in range(3):
        batches.output(batch)
    assert places == [
        (0, PreAggregation.PYTHON),
        ("partial 1", PreAggregation.SQL),
        ("partial 2", PreAggregation.SQL),
    ]


@pytest.mark.parametrize("combine", ["auto", "sql"])
def test_rows_that_sql_does_not_combine_after_all_are_combined_in_python(places, monkeypatch, combine):
    asked = []
    monkeypatch.setattr(BatchOperator, "_partial_results", lambda self, rows: asked.append(rows))
    batches = operator(combine)
    for batch in range(3):
        batches.output(batch)
    assert places == [(0, PreAggregation.PYTHON), (1, PreAggregation.PYTHON), (2, PreAggregation.PYTHON)]
    assert batches.place is PreAggregation.PYTHON
    assert len(asked) == 1
