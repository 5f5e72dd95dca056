"""Has the contestants fail in their turns."""

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

MB: Final = 1_000_000
_STORES: Final[dict[str, Callable[[Path], AbstractContextManager[StoreAt]]]] = {
    LOCAL: stores.local,
    "S3": stores.s3,
    f"S3, {stores.LATENCY_SECONDS * 1000:.0f} ms away": partial(stores.s3, latency=stores.LATENCY_SECONDS),
}
REPETITIONS: Final = 2
OFTEN: Final = {Failure.EXCEPTION: 5, Failure.DRIVER: 2}
"""How often a failure happens in one round; others once. There are goals for these."""
GOALS: Final = {
    "exception: Chandy / Spark without state": "at most 1.5, whatever the size",
    "killed driver, 1000 MB: Spark RocksDB / Chandy": "above 1",
    "killed driver, 1000 MB, first commit: Spark RocksDB / Chandy": "above 1",
}


class UnavailableError(Exception):
    """A contestant cannot take part here."""

    def __init__(self, contestant: str, reason: str) -> None:
        super().__init__(contestant, reason)
        self.contestant = contestant
        self.reason = reason


@attrs.frozen
class Entrant:
    """A contestant that is to take part."""

    store: str
    make: Callable[[Course, Path], AbstractContextManager[Contestant]]
    """Makes it in a new folder, closes it on leaving; raises ``UnavailableError`` if it cannot take part."""


@attrs.frozen
class Heat:
    """Contestants with one size of state, and what they are put through if they can be."""

    state_mb: int
    entrants: Sequence[Entrant]
    failures: Sequence[Failure] = tuple(Failure)


def heats(quick: bool) -> list[Heat]:
    """What is measured, in its order."""
    own, s3, far = (Entrant(store, partial(_chandy, opener)) for store, opener in _STORES.items())
    peers = _peers()
    if quick:
        stateless, rocksdb, _, flink = peers
        return [
            Heat(2, [own, stateless, rocksdb], [Failure.EXCEPTION]),
            Heat(2, [s3], [Failure.MACHINE]),
            Heat(2, [flink], [Failure.HOST]),
        ]
    near = [own, *peers]
    return [
        Heat(10, near),
        Heat(100, [*reversed(near), s3, far]),
        Heat(1000, [far, s3, *near]),
        Heat(2000, near[::-1], [Failure.HOST, Failure.DRIVER]),
    ]


def run(options: Options) -> Report:
    """Measure; see the package."""
    repetitions = options.repetitions or (1 if options.quick else REPETITIONS)
    screen = console()
    turns: list[Turn] = []
    missing: dict[str, str] = {}
    for heat in heats(options.quick):
        for number in range(repetitions):
            # Forwards and backwards: what drifts steadily befalls all alike.
            for entrant in balanced(heat.entrants, number):
                for turn in _turns(heat, entrant, missing, screen):
                    turns.append(turn)
                    _tell(turn, screen)
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


def _turns(heat: Heat, entrant: Entrant, missing: dict[str, str], screen: Console) -> Iterator[Turn]:
    """Fill one contestant, and let it fail in every way."""
    course = Course(heat.state_mb * MB // Course(0).value_bytes)
    # Resolved: a socket's path is long enough without the links of a temporary folder.
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    try:
        with entrant.make(course, folder) as contestant:
            failures = [failure for failure in contestant.failures if failure in heat.failures]
            if failures:
                contestant.fill()
            if Failure.EXCEPTION in failures:
                # The first one in a young JVM is the slowest, whoever it happens to.
                contestant.fail(Failure.EXCEPTION)
            for failure in turns_of(failures):
                yield Turn(contestant.name, entrant.store, heat.state_mb, contestant.fail(failure))
    except UnavailableError as error:
        missing[f"{error.contestant}, {heat.state_mb} MB"] = error.reason
        screen.print(f"{error.contestant} does not take part: {error.reason}", markup=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def turns_of(failures: Sequence[Failure]) -> list[Failure]:
    """What one contestant is put through in one round."""
    return [failure for failure in failures for _ in range(OFTEN.get(failure, 1))]


def _tell(turn: Turn, screen: Console) -> None:
    what = f"{turn.contestant}, {turn.store}, {turn.state_mb:,} MB, {turn.recovered.failure}"
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in turn.recovered.parts.items())
    screen.print(f"{what}: {turn.recovered.seconds:.2f} s ({parts})")


@contextlib.contextmanager
def _chandy(
    open_store: Callable[[Path], AbstractContextManager[StoreAt]], course: Course, folder: Path
) -> Iterator[Contestant]:
    with open_store(folder / "store") as store, closing(Chandy(course, folder / "chandy", store)) as chandy:
        yield chandy


def _peers() -> list[Entrant]:
    from .flink import Flink
    from .spark import Spark
    from .spark_driver import Kind

    makers: dict[str, Callable[[Course, Path], Contestant]] = {
        str(kind): partial(Spark, kind=kind) for kind in Kind
    }
    makers[Flink.name] = Flink
    return [Entrant(LOCAL, partial(_peer, name, maker)) for name, maker in makers.items()]


@contextlib.contextmanager
def _peer(
    name: str, maker: Callable[[Course, Path], Contestant], course: Course, folder: Path
) -> Iterator[Contestant]:
    try:
        with closing(maker(course, folder / "peer")) as made:
            yield made
    except Exception as error:
        # The others are worth their time without it.
        raise UnavailableError(name, f"{type(error).__name__}: {error}") from error
