"""Where rows are combined, by what the batch before was like."""

import pytest

from chandy.state.aggregation.combining import (
    FEW,
    LARGE,
    MANY,
    SMALL,
    Combined,
    PreAggregation,
    next_pre_aggregation,
)

ALL = (None, *PreAggregation)


def seen(rows, repetition=1.0):
    return Combined(rows, max(1, int(rows / repetition)))


def test_the_first_batch_is_combined_in_python():
    assert next_pre_aggregation(None, Combined(0, 0), sql=True) is PreAggregation.PYTHON


@pytest.mark.parametrize("place", PreAggregation)
def test_a_batch_without_rows_says_nothing(place):
    assert next_pre_aggregation(place, Combined(0, 0), sql=True) is place


@pytest.mark.parametrize("place", PreAggregation)
@pytest.mark.parametrize("repetition", [1, 100])
def test_small_batches_are_not_combined(place, repetition):
    assert next_pre_aggregation(place, seen(1, repetition), sql=True) is PreAggregation.NOWHERE
    assert next_pre_aggregation(place, seen(SMALL - 1, repetition), sql=True) is PreAggregation.NOWHERE


@pytest.mark.parametrize(
    ("place", "repetition", "then"),
    [
        (PreAggregation.PYTHON, 1, PreAggregation.PYTHON),
        (PreAggregation.PYTHON, MANY - 1, PreAggregation.PYTHON),
        (PreAggregation.PYTHON, MANY + 1, PreAggregation.SQL),
        (PreAggregation.SQL, 5000, PreAggregation.SQL),
        (PreAggregation.SQL, FEW + 1, PreAggregation.SQL),
        (PreAggregation.SQL, FEW - 1, PreAggregation.PYTHON),
        (PreAggregation.NOWHERE, 1, PreAggregation.PYTHON),
    ],
)
def test_large_batches_are_combined_where_that_is_faster(place, repetition, then):
    assert next_pre_aggregation(place, seen(2 * LARGE, repetition), sql=True) is then


@pytest.mark.parametrize(("place", "rows"), [(PreAggregation.PYTHON, 2 * LARGE), (PreAggregation.SQL, LARGE)])
def test_sql_combines_batches_that_are_worth_a_plan(place, rows):
    assert next_pre_aggregation(place, seen(rows - 1, 5000), sql=True) is PreAggregation.PYTHON
    assert next_pre_aggregation(place, seen(rows, 5000), sql=True) is PreAggregation.SQL


@pytest.mark.parametrize("place", PreAggregation)
def test_sql_combines_nothing_that_it_cannot(place):
    assert next_pre_aggregation(place, seen(2 * LARGE, 5000), sql=False) is PreAggregation.PYTHON


@pytest.mark.parametrize(
    "rows", [1, SMALL - 1, SMALL, 2 * SMALL - 1, 2 * SMALL, LARGE - 1, LARGE, 2 * LARGE - 1, 2 * LARGE]
)
@pytest.mark.parametrize("repetition", [1, FEW - 1, FEW, MANY - 1, MANY, 5000])
def test_equal_batches_come_to_stay_at_one_place(rows, repetition):
    for place in PreAggregation:
        for _ in range(3):
            # Nothing is combined nowhere.
            place = next_pre_aggregation(
                place, seen(rows, 1 if place is PreAggregation.NOWHERE else repetition), sql=True
            )
        assert (
            next_pre_aggregation(
                place, seen(rows, 1 if place is PreAggregation.NOWHERE else repetition), sql=True
            )
            is place
        )
