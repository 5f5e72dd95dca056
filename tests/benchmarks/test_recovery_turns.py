"""In which order the contestants of recovery are filled, fail and rest, and what happens when one breaks down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from benchmarks.recovery.figures import LOCAL
from benchmarks.recovery.scenario import Course, Failure, Recovered
from benchmarks.recovery.turns import IN_A_ROW, Entrant, Heat, compete

DRIVER, EXCEPTION, HOST, COLD = Failure.DRIVER, Failure.EXCEPTION, Failure.HOST, Failure.DRIVER_COLD


class Fake:
    """A contestant that notes what it is asked for, and breaks down where it is told to."""

    def __init__(self, name: str, log: list[str], failures: tuple[Failure, ...], breaks: str | None) -> None:
        self.name = name
        self.failures = failures
        self._log = log
        self._breaks = breaks

    def _note(self, what: str) -> None:
        self._log.append(f"{self.name} {what}")
        if what == self._breaks:
            raise ValueError(f"{what} went wrong")

    def fill(self) -> None:
        self._note("fill")

    def fail(self, failure: Failure) -> Recovered:
        self._note(failure.name)
        return Recovered(failure, 1.0, {})

    def rest(self) -> None:
        self._note("rest")

    def wake(self) -> None:
        self._note("wake")

    def close(self) -> None:
        self._log.append(f"{self.name} close")


class Field:
    """Entrants for fakes, and all that was asked of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.folders: list[Path] = []

    def entrant(
        self,
        name: str,
        *failures: Failure,
        breaks: str | None = None,
        is_peer: bool = True,
    ) -> Entrant:
        def make(course: Course, folder: Path) -> AbstractContextManager[Fake]:
            assert folder.is_dir()
            self.folders.append(folder)
            return made()

        @contextmanager
        def made() -> Iterator[Fake]:
            fake = Fake(name, self.log, failures, breaks)
            try:
                yield fake
            finally:
                fake.close()

        return Entrant(name, LOCAL, make, is_peer)

    def alive(self) -> int:
        """The most contestants that have been alive at one time."""
        living: set[str] = set()
        most = 0
        for line in self.log:
            name, what = line.split()
            if what in ("fill", "wake"):
                living.add(name)
            elif what in ("rest", "close"):
                living.discard(name)
            most = max(most, len(living))
        return most


def test_what_a_driver_survives_comes_after_the_filling_and_what_kills_it_in_rounds() -> None:
    field = Field()
    heat = Heat(1, [field.entrant("a", HOST, DRIVER), field.entrant("b", HOST, DRIVER)], driver_rounds=2)
    turns = list(compete(heat, 1, {}))
    assert field.log == [
        *("a fill", "a HOST", "a rest", "b fill", "b HOST", "b rest"),
        *("a wake", "a DRIVER", "a rest", "b wake", "b DRIVER", "b rest"),
        *("b wake", "b DRIVER", "b rest", "a wake", "a DRIVER", "a rest"),
        *("b close", "a close"),
    ]
    assert [(turn.contestant, turn.recovered.failure) for turn in turns] == [
        *(("a", HOST), ("b", HOST)),
        *(("a", DRIVER), ("b", DRIVER), ("b", DRIVER), ("a", DRIVER)),
    ]


def test_one_contestant_alone_is_alive_at_a_time_and_nothing_of_it_is_left() -> None:
    field = Field()
    heat = Heat(1, [field.entrant(name, *Failure) for name in "abc"])
    turns = list(compete(heat, 2, {}))
    assert field.alive() == 1
    assert len(field.folders) == 3
    assert not any(folder.exists() for folder in field.folders)
    of_each = {failure: sum(turn.recovered.failure is failure for turn in turns) for failure in Failure}
    assert of_each == dict.fromkeys(Failure, 3 * 2) | {
        EXCEPTION: 3 * 2 * IN_A_ROW[EXCEPTION],
        DRIVER: 3 * 2 * heat.driver_rounds,
    }


def test_the_first_exception_does_not_count() -> None:
    field = Field()
    turns = list(compete(Heat(1, [field.entrant("a", EXCEPTION)]), 1, {}))
    assert field.log.count("a EXCEPTION") == len(turns) + 1


def test_nobody_is_put_through_what_it_cannot_be_or_what_the_heat_does_not_have() -> None:
    field = Field()
    heat = Heat(1, [field.entrant("a", EXCEPTION, COLD), field.entrant("b", DRIVER)], [DRIVER, COLD])
    found = {(turn.contestant, turn.recovered.failure) for turn in compete(heat, 1, {})}
    assert found == {("a", COLD), ("b", DRIVER)}
    assert "a EXCEPTION" not in field.log


@pytest.mark.parametrize("breaks", ["fill", "HOST", "wake", "DRIVER", "rest"])
def test_a_peer_that_breaks_down_is_closed_at_once_and_the_others_go_on(breaks: str) -> None:
    field = Field()
    missing: dict[str, str] = {}
    heat = Heat(1, [field.entrant("a", HOST, DRIVER, breaks=breaks), field.entrant("b", HOST, DRIVER)])
    turns = [turn for turn in compete(heat, 1, missing) if turn.contestant == "b"]
    assert [turn.recovered.failure for turn in turns] == [HOST, DRIVER, DRIVER]
    assert missing == {"a, 1 MB": f"ValueError: {breaks} went wrong"}
    assert field.log[field.log.index(f"a {breaks}") + 1] == "a close"
    after = field.log[field.log.index("a close") :]
    assert {line for line in after if line.startswith("a ")} == {"a close"}


def test_without_chandy_there_is_nothing_to_compare() -> None:
    field = Field()
    heat = Heat(1, [field.entrant("a", DRIVER), field.entrant("own", DRIVER, breaks="DRIVER", is_peer=False)])
    with pytest.raises(ValueError, match="DRIVER went wrong"):
        list(compete(heat, 1, {}))
    assert field.log[-2:] == ["own close", "a close"]
    assert not any(folder.exists() for folder in field.folders)
