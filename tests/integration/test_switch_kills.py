"""A leader or its shadow is killed, frozen or stopped at any moment of a switch: each row is in the target once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import pytest

from chandy.coordinator.switch_orders import order_switch
from chandy.coordinator.verdicts import read_verdict
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import (
    asked_key,
    generation_key,
    offer_key,
    start_key,
    switch_key,
    verdict_key,
)
from chandy.storage.store import Store

from ..effort import chance, sampled
from ..waiting import eventually, freeze_group
from .driver_process import DriverProcess, driver
from .driver_runs import runtime as runtime
from .switch_driver import add_files, numbered, target

pytestmark = [pytest.mark.processes, pytest.mark.kills]

SECONDS = 300.0
OLD = "before-next"
MOMENTS: dict[str, Callable[[int], str]] = {
    "ordered": lambda generation: switch_key("next"),
    "asked": asked_key,
    "offered": offer_key,
    "claimed": lambda generation: generation_key(generation + 1),
    "started": lambda generation: start_key(generation + 1),
    "followed": lambda generation: verdict_key(OLD),
}
"""The record that is there from a moment on, by the leader's generation."""
HOWS = (signal.SIGKILL, signal.SIGSTOP)
CASES: list[tuple[str, str | int, signal.Signals]] = list(product(("leader", "shadow"), MOMENTS, HOWS))
# Two drivers write some sixty objects from the order on until the new leader runs.
CASES += [
    (("leader", "shadow")[seed % 2], chance("switch", seed).randrange(60), HOWS[seed // 2 % 2])
    for seed in range(20)
]
CASES += product(("leader", "shadow"), MOMENTS, [signal.SIGTERM])


@attrs.frozen
class Switched:
    """A pipeline that is switched, and what its storage says."""

    folder: Path
    store: Store
    leader: DriverProcess
    shadow: DriverProcess
    generation: int
    written: set[str] = attrs.field(factory=set)
    """All objects that were ever seen."""

    def is_there(self, moment: str) -> bool:
        """Whether the record of a moment is there, or that of a later one."""
        later = list(MOMENTS)[list(MOMENTS).index(moment) :] if moment in MOMENTS else []
        return any((self.folder / "store" / "p" / MOMENTS[one](self.generation)).exists() for one in later)

    def count(self) -> int:
        """Look at all objects; return how many there have ever been."""
        for folder, _, names in os.walk(self.folder / "store"):
            self.written.update(f"{folder}/{name}" for name in names)
        return len(self.written)

    def is_at(self, moment: str | int, written: int) -> bool:
        """Whether a moment has come: that of a record, or of so many objects more than were written."""
        if isinstance(moment, str):
            return self.is_there(moment)
        return self.count() > written + moment or self.is_there("started")

    def needs(self, frozen: str) -> bool:
        """Whether nothing moves while one of the two is frozen.

        A leader offers by itself. As any successor, a shadow that has claimed waits for a driver that is suspended, and
        says whom to wake. Nobody but that shadow leads from then on: the version before follows it.
        """
        if frozen == "leader":
            return self.is_there("claimed") or not self.is_there("offered")
        return self.is_there("followed")

    def has(self, files: int) -> bool:
        """Whether the target has the rows of these files, each once."""
        return target(self.folder / "out") == numbered(files)

    def is_left_alone(self) -> bool:
        """Whether nobody leads, or is going to."""
        if self.leader.process.poll() is None:
            # It follows who has claimed.
            return self.shadow.process.poll() is not None and self.is_there("claimed")
        return self.shadow.process.poll() is not None or not self.is_there("offered")


@pytest.mark.parametrize(
    ("victim", "moment", "how"),
    sampled([pytest.param(*case, id=f"{case[0]}-{case[1]}-{case[2].name}") for case in CASES], 1),
)
def test_whoever_ends_one_leads_and_each_row_is_there_once(
    victim: str, moment: str | int, how: signal.Signals, tmp_path: Path, runtime: Path
) -> None:
    store = open_store(str(tmp_path / "store" / "p"))
    add_files(tmp_path / "in", 0, 2)

    def begin(**options: Any) -> DriverProcess:
        return running.enter_context(
            driver("switch_driver", tmp_path, runtime, {"folder": tmp_path} | options)
        )

    def follows(name: str) -> bool:
        verdict = read_verdict(store, name)
        assert verdict is None or verdict.is_equal, verdict
        return verdict is not None and verdict.states > 0 and verdict.equal > 0

    with ExitStack() as running:
        leader = begin(shadow=False)
        eventually(lambda: leader.told("started") and Catalog(store).latest(), "a checkpoint", SECONDS)
        shadow = begin(shadow=True)
        eventually(lambda: shadow.told("started"), "the shadow", SECONDS)
        add_files(tmp_path / "in", 2, 2)
        eventually(lambda: follows("next"), "an equal batch", SECONDS)
        switched = Switched(tmp_path, store, leader, shadow, Catalog(store).newest_generation())
        ended = {"leader": leader, "shadow": shadow}[victim].process
        written = switched.count()
        order_switch(store, None)
        eventually(lambda: switched.is_at(moment, written), str(moment), SECONDS)
        match how:
            case signal.SIGSTOP:
                freeze_group(ended.pid)
            case signal.SIGKILL:
                os.killpg(ended.pid, how)
            case _:
                # It stops as a scheduler stops it, and its JVM by itself.
                os.kill(ended.pid, how)
        add_files(tmp_path / "in", 4, 2)
        if how is not signal.SIGSTOP:
            eventually(lambda: ended.poll() is not None, "its end", SECONDS)
            eventually(lambda: switched.has(6) or switched.is_left_alone(), "whoever is left", SECONDS)
            if not switched.has(6):
                # The program of the shadow leads if that has claimed the pipeline.
                begin(shadow=switched.is_there("claimed"))
        else:
            other = {"leader": shadow, "shadow": leader}[victim].process
            eventually(
                lambda: switched.has(6) or other.poll() is not None or switched.needs(victim),
                "whoever is left",
                SECONDS,
            )
            os.killpg(ended.pid, signal.SIGCONT)
        eventually(lambda: switched.has(6), "each row once", SECONDS)
        add_files(tmp_path / "in", 6, 1)
        eventually(lambda: switched.has(7), "each row once, later on", SECONDS)
        if switched.is_there("claimed") and leader.process.poll() is None:
            # Whoever leads, the version before is its shadow.
            eventually(lambda: follows(OLD), "the version before to follow", SECONDS)
