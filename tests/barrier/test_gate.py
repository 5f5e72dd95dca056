"""The gate of one query."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chandy.barrier.barrier import Barrier
from chandy.barrier.gate import Gate


def test_a_barrier_stands_ahead_of_the_batches_after_its_cut_and_of_no_other() -> None:
    barrier = Barrier(1, cut=4)
    assert [barrier.is_ahead_of(batch) for batch in (3, 4, 5, 6)] == [False, False, True, True]


def test_a_barrier_is_placed_after_the_batch_that_has_passed() -> None:
    gate = Gate(3)
    gate.passes(4)
    assert gate.place(1, planned=3) == Barrier(1, 4)


def test_a_barrier_is_placed_after_a_batch_that_is_planned_but_has_not_come_yet() -> None:
    gate = Gate(3)
    assert gate.place(1, planned=4) == Barrier(1, 4)
    assert gate.passes(4) == ()
    assert gate.passes(5) == (Barrier(1, 4),)


def test_a_query_that_has_planned_nothing_gets_its_barrier_before_the_first_batch() -> None:
    gate = Gate()
    assert gate.place(1, planned=-1) == Barrier(1, -1)
    assert gate.passes(0) == (Barrier(1, -1),)


def test_the_answer_for_a_batch_never_changes() -> None:
    gate = Gate(3)
    assert gate.passes(4) == ()
    gate.place_at(1, 3)
    assert gate.passes(4) == ()
    assert gate.passes(5) == (Barrier(1, 3),)
    gate.lift(1)
    assert gate.passes(5) == (Barrier(1, 3),)
    assert gate.passes(6) == ()


def test_a_query_that_stands_still_is_cut_at_its_committed_batch_though_a_later_one_has_passed() -> None:
    gate = Gate(3)
    gate.passes(4)
    assert gate.place_at(1, 3) == Barrier(1, 3)


def test_lifting_one_barrier_leaves_the_others() -> None:
    gate = Gate(0)
    first, second = gate.place(1, 0), gate.place(2, 0)
    gate.lift(first.checkpoint)
    gate.lift(99)
    assert gate.passes(1) == (second,)


@given(st.lists(st.tuples(st.sampled_from(["place", "pass", "again"]), st.integers(0, 3)), max_size=40))
def test_every_barrier_is_met_by_every_later_batch_until_it_is_lifted_and_by_no_earlier_one(
    steps: list[tuple[str, int]],
) -> None:
    gate, planned, placed = Gate(), -1, []
    for number, (step, ahead) in enumerate(steps, 1):
        if step == "place":
            placed.append(gate.place(number, planned + ahead % 2))
            planned = max(planned, placed[-1].cut)
        elif step == "pass":
            planned += 1
            assert gate.passes(planned) == tuple(b for b in placed if b.cut < planned)
        elif planned >= 0 and planned == gate.passed:
            before = gate.passes(planned)
            placed.append(gate.place(number, planned))
            assert gate.passes(planned) == before
