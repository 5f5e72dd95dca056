"""Runs the contestants and their failures in turns."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Final

import attrs
from rich.console import Console

from .. import stores
from ..report import Options, Report, console
from ..stage import balanced
from ..stores import StoreAt
from . import figures
from .chandy import Chandy
from .figures import LOCAL, Turn
from .scenario import Contestant, Course, Failure
from .standby import WarmStandby

MB: Final = 1_000_000
_STORES: Final[dict[str, Callable[[Path], AbstractContextManager[StoreAt]]]] = {
    LOCAL: stores.local,
    "S3": stores.s3,
    f"S3, {stores.LATENCY_SECONDS * 1000:.0f} ms away": partial(stores.s3, latency=stores.LATENCY_SECONDS),
}
REPETITIONS: Final = 1
IN_A_ROW: Final = {Failure.EXCEPTION: 5}
"""Failures that happen several times in one turn, each as soon as the last recovery is complete. Others happen once."""
GOALS: Final = {
    "exception: Chandy / Spark without state": "at most 1.5, whatever the size",
    "killed driver, 1000 MB: Spark RocksDB / Chandy": "above 1",
    "killed driver, 1000 MB, first commit: Spark RocksDB / Chandy": "above 1",
}


@attrs.frozen
class Entrant:
    """A contestant that takes part."""

    name: str
    store: str
    make: Callable[[Course, Path], AbstractContextManager[Contestant]]
    """Creates the contestant in a folder, and closes it at the end of the context."""
    is_peer: bool = True
    """Whether the benchmark continues without it if it fails."""


@attrs.frozen
class Heat:
    """Contestants with one size of state, and the failures of those that support them."""

    state_mb: int
    entrants: Sequence[Entrant]
    failures: Sequence[Failure] = tuple(Failure)
    driver_rounds: int = 2
    """Rounds of ``DRIVER`` in each repetition. The size with a goal has more of them. Other failures have one round."""


def heats(quick: bool) -> list[Heat]:
    """Return what is measured, in order."""
    own, s3, far = (
        Entrant(Chandy.name, store, partial(_chandy, opener), is_peer=False)
        for store, opener in _STORES.items()
    )
    peers = _peers()
    if quick:
        stateless, rocksdb, _, flink = peers
        return [
            Heat(2, [own, stateless, rocksdb], [Failure.EXCEPTION]),
            Heat(2, [s3], [Failure.MACHINE]),
            Heat(2, [flink], [Failure.HOST]),
        ]
    warm = Entrant(WarmStandby.name, LOCAL, partial(_chandy, stores.local, make=WarmStandby), is_peer=False)
    near = [own, warm, *peers]
    return [
        Heat(10, near),
        Heat(100, near),
        Heat(100, [s3, far], driver_rounds=1),
        Heat(1000, near, driver_rounds=5),
        Heat(1000, [s3, far], driver_rounds=1),
        Heat(2000, near, [Failure.HOST, Failure.DRIVER]),
    ]


def chosen(heats: Sequence[Heat], options: Options) -> list[Heat]:
    """Return the heats with the contestants and failures that take part, without those that are empty then.

    Raises:
        ValueError: nothing takes part.
    """
    found = []
    for heat in heats:
        pairs = [
            (entrant, failure)
            for entrant in heat.entrants
            for failure in heat.failures
            if options.takes(f"{failure}: {heat.state_mb} MB: {entrant.name}, {entrant.store}")
        ]
        if pairs:
            # In their order, each once.
            entrants, failures = (list(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
            found.append(attrs.evolve(heat, entrants=entrants, failures=failures))
    if not found:
        raise ValueError(f"nothing has {options.only!r} in its name, such as 'killed driver: 10 MB: Chandy'")
    return found


def run(options: Options) -> Report:
    """Measure; see the package."""
    repetitions = options.repetitions or (1 if options.quick else REPETITIONS)
    screen = console()
    turns: list[Turn] = []
    missing: dict[str, str] = {}
    for heat in chosen(heats(options.quick), options):
        for turn in compete(heat, repetitions, missing):
            turns.append(turn)
            _tell(turn, screen)
    for contestant, reason in missing.items():
        screen.print(f"{contestant} did not take part: {reason}", markup=False)
    settings = {
        "value_bytes": Course(0).value_bytes,
        "rows_of_a_batch": Course(0).touched,
        "batches_to_replay": Course(0).replayed,
        "repetitions": repetitions,
        "goals": GOALS,
        "missing": missing,
    }
    ratios = figures.ratios(turns) | figures.first_commit_ratios(turns)
    return Report("recovery", figures.rows(turns), ratios, settings)


def compete(heat: Heat, repetitions: int, missing: dict[str, str]) -> Iterator[Turn]:
    """Fill all contestants of a heat, and run its failures. Only one contestant runs at a time.

    Failures that a driver survives come right after the filling, when it has run for a while. Failures that kill it
    come in rounds. In each round, one contestant after the other is started, killed and stopped.

    Args:
        heat: the contestants and failures.
        repetitions: how often each failure is repeated.
        missing: takes the contestants that dropped out, with the reasons.
    """
    course = Course(heat.state_mb * MB // Course(0).value_bytes)
    field: dict[Entrant, Contestant] = {}

    @contextlib.contextmanager
    def dropping_out(entrant: Entrant) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not entrant.is_peer:
                raise
            missing[f"{entrant.name}, {heat.state_mb} MB"] = f"{type(error).__name__}: {error}"
            if entrant in field:
                field.pop(entrant).close()

    def fail(entrant: Entrant, failure: Failure) -> Turn:
        return Turn(entrant.name, entrant.store, heat.state_mb, field[entrant].fail(failure))

    with contextlib.ExitStack() as ends:
        for entrant in heat.entrants:
            with dropping_out(entrant):
                contestant = field[entrant] = ends.enter_context(_made(entrant, course))
                contestant.fill()
                tried = survived(contestant.failures, heat, repetitions)
                if Failure.EXCEPTION in tried:
                    # The first exception in a new JVM is the slowest for all contestants.
                    contestant.fail(Failure.EXCEPTION)
                for failure in tried:
                    yield fail(entrant, failure)
                contestant.rest()
        for failure, number in deaths(heat, repetitions):
            # Forwards and backwards, so that steady drift affects all contestants alike.
            for entrant in balanced(list(field), number):
                if failure in field[entrant].failures:
                    with dropping_out(entrant):
                        field[entrant].wake()
                        yield fail(entrant, failure)
                        field[entrant].rest()


def survived(able: Sequence[Failure], heat: Heat, repetitions: int) -> list[Failure]:
    """Return the failures of a heat that a contestant's driver survives, in order."""
    return [
        failure
        for failure in heat.failures
        if failure in able and not failure.kills_driver
        for _ in range(IN_A_ROW.get(failure, 1) * repetitions)
    ]


def deaths(heat: Heat, repetitions: int) -> list[tuple[Failure, int]]:
    """Return the rounds of a heat in which drivers are killed: the failure, and the number of its round."""
    return [
        (failure, number)
        for failure in heat.failures
        if failure.kills_driver
        for number in range(repetitions * (heat.driver_rounds if failure is Failure.DRIVER else 1))
    ]


@contextlib.contextmanager
def _made(entrant: Entrant, course: Course) -> Iterator[Contestant]:
    """Create a contestant in a folder of its own. Both are removed afterwards."""
    # Resolve symbolic links, because paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    try:
        with entrant.make(course, folder) as contestant:
            yield contestant
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(turn: Turn, screen: Console) -> None:
    what = f"{turn.contestant}, {turn.store}, {turn.state_mb:,} MB, {turn.recovered.failure}"
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in turn.recovered.parts.items())
    screen.print(f"{what}: {turn.recovered.seconds:.2f} s ({parts})")


@contextlib.contextmanager
def _chandy(
    open_store: Callable[[Path], AbstractContextManager[StoreAt]],
    course: Course,
    folder: Path,
    make: type[Chandy] = Chandy,
) -> Iterator[Contestant]:
    with open_store(folder / "store") as store, closing(make(course, folder / "chandy", store)) as chandy:
        yield chandy


def _peers() -> list[Entrant]:
    from .flink import Flink
    from .spark import Spark
    from .spark_driver import Kind

    makers: dict[str, Callable[[Course, Path], Contestant]] = {
        str(kind): partial(Spark, kind=kind) for kind in Kind
    }
    makers[Flink.name] = Flink
    return [Entrant(name, LOCAL, partial(_peer, maker)) for name, maker in makers.items()]


@contextlib.contextmanager
def _peer(maker: Callable[[Course, Path], Contestant], course: Course, folder: Path) -> Iterator[Contestant]:
    with closing(maker(course, folder / "peer")) as made:
        yield made
