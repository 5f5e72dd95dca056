"""What ``Supervisor`` needs of a world: queries whose runs are restored, started and stopped as with Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from typing_extensions import override

from chandy.coordinator.recovery.supervisor import Supervisor
from chandy.coordinator.restore.restore_point import RestorePoint
from chandy.state.failure_marks import mark
from chandy.storage.checkpoints.manifest import Manifest, OperatorRecord
from chandy.storage.errors import ChandyError

from .queries import Run

if TYPE_CHECKING:
    from .driver import Driver

TOKEN = "token"
"""What the processes of a pipeline share."""


FAILS = 0.05
"""How often a query can neither be restored nor started again."""


class SparkError(Exception):
    """What Spark says of a query that has failed: a text, with the marks of what a task has raised."""

    @classmethod
    def of(cls, error: Exception) -> SparkError:
        """Return what Spark says of an error of a task."""
        mark(error, TOKEN)
        return cls("\n".join([str(error), *getattr(error, "__notes__", ())]))


@attrs.frozen
class WorldDefinition:
    """What a query consists of. It is its own sink, and has no sources that need anything."""

    driver: Driver
    name: str
    operators: tuple[OperatorRecord, ...]
    guarantee: None = None

    @property
    def sink(self) -> WorldDefinition:
        return self

    @property
    def sources(self) -> WorldDefinition:
        return self

    def interrupt(self) -> None:
        """Have no batch wait for a target. Stopping a run does so."""

    def close(self) -> None:
        """End what publishes."""
        sinks = self.driver.queries.sinks
        if self.name in sinks:
            sinks[self.name].close()


@attrs.frozen
class WorldLauncher:
    """Restores and starts runs, as ``Launcher`` does with Spark and the disk. It is the current runs, too."""

    driver: Driver
    metrics: dict[str, Any] = attrs.field(factory=dict)

    def begin(self, protocol: object, proof: object, watcher: Supervisor) -> None:
        """Do nothing: the driver has all of these."""

    def restore(
        self, definition: WorldDefinition, point: RestorePoint | None, resumed: None, *given: object
    ) -> Run:
        """Make a query's next run."""
        self.driver.world.promises.restoring(self.driver, point)
        run = self.driver.add(definition, point)
        self._may_fail()
        self.driver.supervisor.run_made(run)
        return run

    def _may_fail(self) -> None:
        """Fail now and then, once all queries have been started."""
        chance = self.driver.world.scheduler.choices.stream("starts")
        if self.driver.has_begun and chance.random() < FAILS:
            raise SparkError("the query cannot be started now")

    def again(self, run: Run) -> Run:
        """Make a run that replaces one that has ended, in place."""
        again = attrs.evolve(
            run,
            number=self.driver.next_number(),
            is_started=False,
            is_stopped=False,
            has_ended=False,
            ended=False,
        )
        self.driver.queries.runs[run.query] = again
        self.driver.supervisor.run_made(again)
        return again

    def start(self, run: Run, query: object, metrics: Any) -> None:
        """Start a run."""
        self.driver.watch.proof.check()
        self._may_fail()
        self.metrics[run.query_id] = metrics
        self.driver.queries.start(run)
        self.driver.supervisor.run_begun(run)

    def stop(self, run: Run) -> None:
        """Stop a run."""
        run.ended = True
        self.driver.supervisor.run_stopped(run)
        self.stop_in_spark(run)

    def stop_in_spark(self, run: Run) -> None:
        """Have Spark stop a run."""
        self.driver.queries.stop(run)

    def stop_all(self, runs: list[Run]) -> None:
        """Stop runs."""
        for run in runs:
            self.stop(run)

    def stop_all_in_spark(self, runs: list[Run]) -> None:
        """Have Spark stop runs."""
        for run in runs:
            self.stop_in_spark(run)

    def forget(self, name: str) -> None:
        """Leave a query that could not be started: the driver ends."""

    def remove(self, run: Run) -> None:
        """Delete nothing: a run has no directory."""

    def remove_resumed(self, run: Run) -> None:
        """Delete nothing: no run is resumed."""

    # --- Runs -----------------------------------------------------------------------------------------------

    def get(self, name: str) -> Run | None:
        """Return the run of a query."""
        return self.driver.queries.runs.get(name)

    def all(self) -> list[Run]:
        """Return all runs."""
        return [*self.driver.queries.runs.values()]

    def completed(self, manifest: Manifest) -> None:
        """Tell no sources."""

    def await_tasks(self, seconds: float) -> bool:
        """Wait for nothing: tasks end with their batch."""
        return True


class NothingResumed:
    """No query resumes a run."""

    enabled = False

    def leftover(self, definition: object, point: object) -> None:
        """Return nothing."""

    def left(self, name: str) -> tuple[Path, ...]:
        """Return nothing."""
        return ()

    def blocks_others(self, name: str, point: object) -> bool:
        """Return False."""
        return False

    def resumable(self, runs: object, point: object) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def forget_leftovers(self) -> None:
        """Do nothing."""

    def erase_records(self, runs: object) -> None:
        """Do nothing."""

    def delete_changelogs(self, query_ids: object) -> None:
        """Do nothing."""


class WatchedSupervisor(Supervisor):
    """Has the world look at what is announced, and at errors that nobody expects."""

    def __init__(self, driver: Driver, **given: Any) -> None:
        super().__init__(**given)
        self.driver = driver

    @override
    def checkpoint_completed(self, manifest: Manifest, root: str) -> None:
        self.driver.world.promises.completed(self.driver, manifest, root)
        super().checkpoint_completed(manifest, root)

    @override
    def _fail_for_good(self, noticed: Exception, because: str = "") -> Exception:
        is_known = isinstance(noticed, ChandyError | OSError)
        self.driver.world.promises.check(is_known, f"a pipeline ends by {noticed!r}")
        return super()._fail_for_good(noticed, because)
