"""Drivers that take a pipeline over, stand by, shadow, freeze, wake, lose their store and their machines.

Each is two processes of a machine: the program, which runs the product's take-over, lease and watch, and its JVM, which
runs batches and knows nothing of all that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
from typing_extensions import override

from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import PredecessorRunsError
from chandy.coordinator.leadership.heir import Heir
from chandy.coordinator.leadership.offering import Offering
from chandy.coordinator.leadership.waiting_driver import WaitingDriver
from chandy.coordinator.permit import Permit
from chandy.coordinator.wiring.taken_pipeline import PipelineTakeover, TakenPipeline, look
from chandy.state.local.processes import Process
from chandy.storage import runtime
from chandy.storage.backends.retrying import RetryingStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.layout import generation_key, lease_key
from chandy.storage.checkpoints.manifest import Handle, Manifest, QueryRecord
from chandy.storage.checkpoints.offers import AskedOffer, Offer
from chandy.storage.errors import ChandyError, FencedError, StorageError, StoreFailedError
from chandy.storage.ids import BatchId, CheckpointId
from chandy.storage.store import Store

from ..builders import make_manifest
from .choices import Choices
from .machines import Machine
from .runtime import SimulatedRuntime
from .scheduler import Pace, Scheduler, SimulatedProcess
from .store import Bucket, Fault, ScriptedStore, Trouble
from .system import SimulatedSystem, asked

ROOT: Final = "memory://pipeline"
NO_CHECKPOINT: Final = CheckpointId(0)
PATIENCE: Final = 10.0
"""Seconds of a lease, and for which a predecessor is waited for."""
ENOUGH: Final = 400.0
"""Seconds after the last trouble in which a driver begins a batch, at the latest."""


class CutStore(ScriptedStore):
    """A store that some programs cannot reach."""

    def __init__(self, scheduler: Scheduler, bucket: Bucket, program: Program) -> None:
        super().__init__(scheduler, bucket)
        self._program = program

    @override
    def _call(self, operation: str, key: str, act: Callable[[], Any]) -> tuple[Any, Trouble | None]:
        self._program.called()
        part = self._program.cut
        if part is not None and part in key:
            self._scheduler.sleep(0.05, "a store that is not reached")
            raise StoreFailedError(self.uri, key, operation, "no route", transient=True)
        return super()._call(operation, key, act)


@attrs.define(eq=False)
class Program:
    """A driver of the pipeline, from its start to its end."""

    world: Leaders = attrs.field(repr=False)
    number: int
    python: SimulatedProcess
    java: SimulatedProcess
    stands_by: bool
    random: Random = attrs.field(repr=False)
    fenced: runtime.Flag = attrs.field(repr=False)
    told: runtime.Flag = attrs.field(repr=False)
    """Whether it was told to stop."""
    idle: runtime.Flag = attrs.field(repr=False)
    """Whether its JVM runs no batch."""
    cut: str | None = None
    """The part of the keys that it does not reach; None: it reaches all."""
    hands_over: bool = False
    generation: int = 0
    """What it has claimed and started; 0: nothing yet."""
    is_over: bool = False
    began: int = 0
    """How many batches it has begun."""
    waits_since: float = float("inf")
    """When it began to wait for another driver, in seconds of the run."""
    shadows_after: float | None = None
    """After how many seconds it asks the leader for the pipeline, again and again; None: it does not."""
    is_heir: bool = False
    """Whether a leader has handed the pipeline over to it."""
    follows: bool = False
    """Whether it has handed the pipeline over to its shadow, and is the shadow of that one."""
    returns_after: float | None = None
    """After how many seconds it then asks for the pipeline; None: it only follows."""
    rests: bool = False
    """Whether it stands still for a shadow."""
    next_id: int = 0
    calls: int = 0
    """How often it has called its store."""
    harm: Callable[[], object] | None = None
    """What happens to it right after a call; what is left of it goes on meanwhile."""
    harmed_at: int = 0
    """That call, by its number."""

    def called(self) -> None:
        """Count a call of the store."""
        self.calls += 1
        if self.harm is not None and self.calls == self.harmed_at:
            self.harm()
            # It is noticed with the next step.
            runtime.sleep(0.001)

    @property
    def lives(self) -> bool:
        """Whether it may still do something."""
        return self.python.is_alive and not self.is_over

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads."""
        return self.lives and self.generation > 0

    def main(self) -> None:
        """Do what the program does."""
        catalog = Catalog(self.world.store_of(self))
        java = Process.of(self.world.system.pid(self.java))
        runs: Any = self
        takeover = PipelineTakeover(
            "pipeline", catalog, self.world.config, "latest", runtime.time, java, Permit(), runs, None
        )
        try:
            with ExitStack() as closing:
                found = look(catalog, "latest")
                if self.shadows_after is not None:
                    self._lead(self._inherited(catalog, takeover, closing, self.shadows_after))
                elif self.stands_by:
                    cache = FileCache(self.world.folder / "cache")
                    standby = WaitingDriver(catalog, PATIENCE, cache, self._waits, runtime.time)
                    self._lead(takeover.in_turn(standby, found, closing))
                else:
                    self._lead(takeover.now(found, closing))
            while self.follows and not self.told.is_set():
                # What it has led with has ended.
                self.generation, self.fenced, self.rests = 0, runtime.flag(), False
                if self.returns_after is None:
                    self.told.wait()
                    break
                with ExitStack() as closing:
                    taken = self._inherited(catalog, takeover, closing, self.returns_after)
                    self.follows = False
                    self._lead(taken)
        except (ChandyError, OSError) as error:
            self.world.ended.append((self.number, error))
        self.is_over = True
        if not any(one.lives for one in self.world.programs if one.python is self.python):
            self.world.scheduler.kill(self.python)

    def _inherited(
        self, catalog: Catalog, takeover: PipelineTakeover, closing: ExitStack, after: float
    ) -> TakenPipeline:
        """Ask for the pipeline until it is there, as a shadow does that has found no difference."""
        runtime.sleep(after)
        while True:
            with suppress(StorageError, OSError), ExitStack() as attempt:
                generation = catalog.newest_generation()
                heir = Heir(catalog, f"shadow-{self.number}", seconds=5.0, name=str(self.number))
                if catalog.leader(generation) is not None and heir.ask(generation, NO_CHECKPOINT):
                    until = runtime.monotonic() + 10.0
                    while not (heir.is_in_vain() or heir.offered() or runtime.monotonic() > until):
                        heir.has_passed(max(catalog.list_ids(), default=NO_CHECKPOINT))
                        runtime.sleep(0.05)
                    if (offer := heir.offered()) is not None:
                        state = self._state(catalog, offer)
                        if (inherited := heir.claim(state, runtime.time())) is not None:
                            taken = takeover.inherit(inherited, look(catalog, "latest"), attempt)
                            self.is_heir = True
                            closing.push(attempt.pop_all())
                            return taken
            runtime.sleep(1.0)

    def _state(self, catalog: Catalog, offer: Offer) -> Manifest:
        """Return the shadow's checkpoint, which may be at another cut by mistake."""
        state, (query,) = (found := catalog.read(offer.checkpoint)), found.queries
        if self.random.random() < 0.2:
            query = attrs.evolve(query, batch=BatchId(query.batch + 1))
        return attrs.evolve(
            state, id=CheckpointId(1), queries=(query,), versions={"shadow": str(self.number)}
        )

    def _waits(self, needed: runtime.Flag) -> None:
        self.waits_since = min(self.waits_since, self.world.scheduler.now)

    def _lead(self, taken: TakenPipeline) -> None:
        self.generation = taken.generation.generation
        self.world.starts(self)
        self.next_id = taken.generation.next_id
        taken.watch.listen(lambda error: self.fenced.set())
        offering = Offering(
            taken.catalog,
            taken.watch.proof,
            lambda asked: CommittedBatches(self, taken, asked),
            lambda: True,
            nullcontext,
        )
        while not self.fenced.is_set() and not self.told.is_set():
            try:
                taken.watch.proof.check()
            except FencedError:
                return
            except (ChandyError, OSError):
                runtime.sleep(0.5)
                continue
            if not self.rests:
                self.world.begins_batch(self)
                self._run_batch()
            with suppress(ChandyError, OSError):
                offering.look()
            self.told.wait(0.2)
        if self.told.is_set() and not self.hands_over and not self.fenced.is_set():
            taken.leadership.stop()
            if self._says_stopped():
                self.world.stopped.setdefault(self.generation, self.world.scheduler.now)

    def _says_stopped(self) -> bool:
        data = self.world.bucket.objects.get(lease_key(self.generation))
        return data is not None and bool(json.loads(data)["stopped"])

    def _run_batch(self) -> None:
        self.began += 1
        self.idle.clear()
        self.world.scheduler.spawn(self.java, self._batch, "batch")
        while not self.idle.wait(1.0) and self.java.is_alive and not self.told.is_set():
            pass

    def _batch(self) -> None:
        drawn = self.random.random
        until = runtime.monotonic() + (0.5 if drawn() < 0.8 else 15.0) * drawn()
        # Spark cancels what is told to stop, unless nothing can cancel that.
        may_cancel = drawn() < 0.7
        while runtime.monotonic() < until and not (may_cancel and self.fenced.is_set()):
            runtime.sleep(0.1)
        self.idle.set()

    def await_ends(self, timeout: float | None) -> bool:
        """See ``Runs``."""
        return self.idle.wait(timeout) if self.java.is_alive else True


@attrs.frozen
class CommittedBatches:
    """What a program that is to hand over does about its batches, of which none runs when it looks for a shadow."""

    program: Program
    taken: TakenPipeline
    asked: AskedOffer

    def begin(self) -> CheckpointId:
        """Take a last checkpoint."""
        self.program.rests = True
        if not self.program.idle.wait(30.0):
            raise StoreFailedError(ROOT, "", "end a batch", "it runs on", transient=True)
        return self.checkpoint()

    def checkpoint(self) -> CheckpointId:
        """Take a checkpoint."""
        batch = BatchId(sum(one.began for one in self.program.world.programs))
        query = QueryRecord("delays", batch, Handle())
        made = make_manifest(self.program.next_id, self.program.generation, queries=(query,), operators=())
        self.program.next_id += 1
        self.taken.catalog.commit(made)
        self.taken.catalog.confirm(made)
        return made.id

    def end(self) -> None:
        """Let batches go on."""
        self.program.rests = False

    def hand_over(self, last: CheckpointId, error: FencedError) -> None:
        """Follow the shadow that was asked for the pipeline, and nobody else."""
        claim = self.program.world.bucket.objects[generation_key(self.asked.generation + 1)]
        assert self.asked.shadow in json.loads(claim)["owner"], "it follows a driver that has not asked"
        self.program.follows = True

    def give_up(self, error: FencedError) -> None:
        """End."""


@attrs.frozen
class Happening:
    """Something that happens to the drivers."""

    at: float
    """Seconds since the run began."""
    kind: str
    which: float
    """Of those that it may happen to: at least 0 and below 1."""
    how: float
    """A number of the same kind for whatever else it is about."""


class Leaders:
    """The store, the machines and the programs of a run, and what must hold of them."""

    def __init__(self, scheduler: Scheduler, folder: Path, *, only_standbys: bool) -> None:
        self.scheduler, self.folder = scheduler, folder
        self.system = SimulatedSystem(scheduler)
        self.bucket = Bucket(ROOT)
        self.config = CheckpointConfig(takeover_timeout=f"{PATIENCE:g} s")
        self.only_standbys = only_standbys
        self.machines = [Machine(scheduler, name, folder / name) for name in ("m0", "m1")]
        self.programs: list[Program] = []
        self.ended: list[tuple[int, Exception]] = []
        """Which programs have ended with what errors."""
        self.stopped: dict[int, float] = {}
        """When the lease of a generation said that it was stopped on purpose, in seconds of the run."""
        self.comes_back = 0.0
        """How likely a driver that has handed over wants to lead again."""
        self.troubled = 0.0
        """When anything last failed that all depend on."""
        self.met: dict[str, int] = {}

    def store_of(self, program: Program) -> Store:
        """Return the store as a program reaches it."""
        return RetryingStore(CutStore(self.scheduler, self.bucket, program))

    # --- what happens ---------------------------------------------------------------------------------------

    def a_driver_comes(
        self, which: float, how: float, stands_by: bool, most: int = 4, shadows_after: float | None = None
    ) -> Program | None:
        """Somebody starts the program, at times in a process that runs it already. Returns it if there is room.

        Args:
            which: of the machines.
            how: at least 0 and below 1.
            stands_by: whether it waits for its turn.
            most: how many that live are enough on a machine.
            shadows_after: after how many seconds it asks for the pipeline; None: it is no shadow.
        """
        machine = self.machines[int(which * len(self.machines))]
        here = [one for one in self.programs if one.python.is_alive and one.python.machine is machine]
        if not machine.is_on or len(here) >= most:
            return None
        number = len(self.programs)
        if here and how < 0.2:
            python, java = here[-1].python, here[-1].java
        else:
            python, java = machine.start(f"driver-{number}"), machine.start(f"java-{number}")
            python.at_end.append(partial(self._java_follows, python, java, how * 2))
        python.offset = (0.0, 3600.0, -3600.0)[int(how * 1000) % 3]
        random = self.scheduler.choices.stream(f"program {number}")
        with self.scheduler.inside(python):
            made = Program(
                self, number, python, java, stands_by, random, runtime.flag(), runtime.flag(), runtime.flag()
            )
        made.idle.set()
        made.shadows_after = shadows_after
        if (returns := self.scheduler.choices.stream(f"returns {number}")).random() < self.comes_back:
            made.returns_after = 60.0 * returns.random()
        self.programs.append(made)
        self.scheduler.spawn(python, made.main, f"main-{number}")
        return made

    def _java_follows(self, python: SimulatedProcess, java: SimulatedProcess, seconds: float) -> None:
        """A JVM ends a moment after its program."""

        def follow() -> None:
            runtime.sleep(seconds)
            self.scheduler.kill(java)

        self.scheduler.spawn(self.scheduler.world, follow, f"end of {java.name}")

    def _one(self, which: float, *, leads: bool = False) -> Program | None:
        found = [one for one in self.programs if (one.leads if leads else one.lives)]
        return found[int(which * len(found))] if found else None

    def happen(self, one: Happening) -> None:
        """Let something happen."""
        self.met[one.kind] = self.met.get(one.kind, 0) + 1
        if one.kind == "comes":
            self.a_driver_comes(one.which, one.how, self.only_standbys or one.how < 0.6)
            return
        if one.kind == "store":
            operation, part, trouble = _FAULTS[int(one.how * len(_FAULTS))]
            self.bucket.faults.append(
                Fault(operation, part, trouble, times=1 + int(one.which * 3), seconds=8.0)
            )
            self.troubled = max(self.troubled, self.scheduler.now + 60.0)
            return
        program = self._one(one.which, leads=one.how < 0.7)
        if program is None:
            return
        machine = program.python.machine
        match one.kind:
            case "is killed":
                self.scheduler.kill(program.python)
            case "loses power":
                machine.lose_power()
                self._later(5.0 + 60.0 * one.how, machine.start_again)
            case "freezes":
                self.scheduler.freeze(program.python)
                self._later(40.0 * one.how, partial(self.scheduler.thaw, program.python))
            case "is cut off":
                program.cut = ("", "lease", "generations/")[int(one.how * 1000) % 3]
                self._later(40.0 * one.how, partial(self._mend, program))
            case "is told to stop":
                program.hands_over = one.how < 0.2
                program.told.set()
            case "has another time of day":
                program.python.offset += (3600.0, -3600.0)[int(one.how * 1000) % 2]

    def harm(self, program: Program, how: str) -> None:
        """Kill a program, or have it stand still or without a store for longer than a lease lasts, or anybody waits."""
        match how:
            case "is killed":
                self.scheduler.spawn(
                    self.scheduler.world, partial(self.scheduler.kill, program.python), "what kills it"
                )
            case "freezes":
                self.scheduler.freeze(program.python)
                self._later(40.0, partial(self.scheduler.thaw, program.python))
            case "is cut off":
                program.cut = ""
                self._later(40.0, partial(self._mend, program))

    def direct(self, happenings: list[Happening]) -> None:
        """Let everything happen in its time."""

        def go() -> None:
            for one in happenings:
                runtime.sleep(max(0.0, one.at - self.scheduler.now))
                self.happen(one)

        self.scheduler.call(self.scheduler.world, go, 2_000_000)

    def _later(self, seconds: float, then: Callable[[], object]) -> None:
        def wait() -> None:
            runtime.sleep(seconds)
            then()

        self.scheduler.spawn(self.scheduler.world, wait, "what comes later")

    def _mend(self, program: Program) -> None:
        program.cut = None

    # --- promises -------------------------------------------------------------------------------------------

    def starts(self, program: Program) -> None:
        """A program has taken the pipeline over, and may write."""
        before = [
            one
            for one in self.programs
            if one is not program and 0 < one.generation < program.generation and one.java.is_alive
        ]
        for one in before:
            is_near = one.java.machine is program.java.machine
            assert not is_near or one.idle.is_set(), (
                f"driver {program.number} begins to write while the JVM of driver {one.number} runs a batch"
            )
        stopped = self.stopped.get(program.generation - 1)
        if stopped is None or not program.stands_by or self.scheduler.now < self.troubled:
            return
        claimed = self.bucket.modified[generation_key(program.generation)]
        # It claims by a look that is younger than this.
        has_waited = program.waits_since < stopped - 5.0 < stopped + 1.0 < claimed
        assert not has_waited, (
            f"driver {program.number} has waited, and goes on with what was stopped on purpose"
        )

    def begins_batch(self, program: Program) -> None:
        """A program begins a batch."""
        newer = [one.number for one in self.programs if one.generation > program.generation]
        assert not newer, f"driver {program.number} begins a batch after driver {newer[0]} has begun to write"

    # --- the end --------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let everything be well again."""
        self.bucket.faults.clear()
        for machine in self.machines:
            machine.start_again()
        for program in self.programs:
            program.cut = None
            self.scheduler.thaw(program.python)

    def one_leads(self) -> None:
        """Have a driver come after all stops, and see that one gets the pipeline."""
        self.scheduler.call(self.scheduler.world, lambda: runtime.sleep(60.0), 2_000_000)
        before = sum(one.began for one in self.programs)
        until = self.scheduler.now + ENOUGH

        def is_refused() -> bool:
            last = len(self.programs) - 1
            return any(one == last and isinstance(error, PredecessorRunsError) for one, error in self.ended)

        def is_over() -> bool:
            return sum(one.began for one in self.programs) > before or self.scheduler.now > until

        while not is_over():
            # The batch of the driver before may take longer than it is waited for: then one comes again.
            self.a_driver_comes(0.0, 0.5, self.only_standbys, most=100)
            self.scheduler.run(lambda: is_over() or is_refused(), 2_000_000)
        assert self.scheduler.now <= until, (
            f"no driver begins a batch any more\n{self.scheduler.whereabouts()}"
        )


_FAULTS: Final = [
    ("create", "generations/", Trouble.LOST),
    ("create", "generations/", Trouble.LATE),
    ("create", "generations/", Trouble.REFUSED),
    ("write", "lease", Trouble.LOST),
    ("write", "lease", Trouble.SLOW),
    ("write", "lease", Trouble.TWICE),
    ("write", "driver", Trouble.LOST),
    ("write", "driver", Trouble.REFUSED),
    ("delete", "driver", Trouble.LOST),
    ("delete", "driver", Trouble.REFUSED),
    ("read", "generations/", Trouble.SLOW),
    ("read", "lease", Trouble.REFUSED),
    ("read", "driver", Trouble.SLOW),
    ("list", "generations/", Trouble.SLOW),
    ("stat", "generations/", Trouble.SLOW),
]
KINDS: Final = {
    "comes": 4,
    "store": 3,
    "is killed": 3,
    "loses power": 1,
    "freezes": 4,
    "is cut off": 3,
    "is told to stop": 2,
    "has another time of day": 1,
}
"""What may happen, and how often."""


def drawn(choices: Choices, number: int = 25, seconds: float = 12.0) -> list[Happening]:
    """Draw what happens in a run, by ascending times."""
    random, at, found = choices.stream("happenings"), 0.0, []
    for kind in random.choices(list(KINDS), list(KINDS.values()), k=number):
        at += seconds * random.random()
        found.append(Happening(at, kind, random.random(), random.random()))
    return found


@contextmanager
def leaders(seed: object, folder: Path, *, only_standbys: bool) -> Iterator[Leaders]:
    """Make a world of drivers, and end it."""
    scheduler = Scheduler(Choices(seed), Pace(held_up=0.0002))
    with runtime.used(SimulatedRuntime(scheduler)):
        world = Leaders(scheduler, folder, only_standbys=only_standbys)
        with asked(world.system):
            try:
                yield world
            finally:
                scheduler.end()


def run(seed: object, folder: Path, happenings: list[Happening] | None = None) -> Leaders:
    """Run drivers from a seed; raise what promise is broken.

    Args:
        seed: of everything that is left to chance.
        folder: for what programs keep on their disks.
        happenings: what happens; None: what the seed draws.
    """
    random = Choices(seed).stream("kind of run").random()
    with leaders(seed, folder, only_standbys=random < 0.5) as world:
        world.comes_back = 0.5
        for _ in range(2):
            world.a_driver_comes(random, 0.3, stands_by=True)
        for _ in range(2) if (shadows := Choices(seed).stream("shadows")).random() < 0.5 else ():
            world.a_driver_comes(shadows.random(), 0.5, False, shadows_after=60.0 * shadows.random())
        world.direct(drawn(Choices(seed)) if happenings is None else happenings)
        world.calm()
        world.one_leads()
        return world


# --- a switch -----------------------------------------------------------------------------------------------


def switch(
    seed: object,
    folder: Path,
    victim: str,
    call: int,
    how: str,
    *,
    standby: bool,
    back: bool = False,
) -> Leaders:
    """Have a shadow get the pipeline, and harm one of the two right after a call of its store; see that one leads.

    Args:
        seed, folder: as for ``run``.
        victim: "leader", "shadow" or "nobody".
        call: how many calls after the shadow has begun to ask.
        how: as for ``Leaders.harm``.
        standby: whether a standby waits, too. Without one, nobody goes on for a leader that is killed: the old version
            is it before the claim, the new one after it.
        back: whether that happens in a second switch, which leads back to the driver that has led at first.
    """
    with leaders(seed, folder, only_standbys=standby) as world:

        def comes(where: float, stands_by: bool, shadows_after: float | None = None) -> Program:
            made = world.a_driver_comes(where, 0.5, stands_by, shadows_after=shadows_after)
            assert made is not None
            return made

        def goes_on(seconds: float) -> None:
            before, until = sum(one.began for one in world.programs), world.scheduler.now + seconds
            world.scheduler.run(
                lambda: sum(one.began for one in world.programs) > before or world.scheduler.now > until,
                2_000_000,
            )
            assert world.scheduler.now <= until, f"nobody leads\n{world.scheduler.whereabouts()}"

        leader = comes(0.0, standby)
        goes_on(100.0)
        if standby:
            comes(0.9, True)
        shadow = comes(0.0 if call % 2 else 0.9, False, 0.0)
        # Nothing depends on whose clock is right.
        shadow.python.offset = 3600.0
        if back:
            leader.returns_after = 0.0
            world.scheduler.run(lambda: leader.follows and shadow.leads, 2_000_000)
            leader, shadow = shadow, leader
        generation = leader.generation
        if victim != "nobody":
            one = leader if victim == "leader" else shadow
            one.harmed_at = one.calls + call
            one.harm = partial(world.harm, one, how)
        world.scheduler.call(world.scheduler.world, lambda: runtime.sleep(120.0), 2_000_000)
        world.calm()
        if victim == "nobody":
            assert shadow.is_heir and shadow.leads, "the shadow leads"
        has_claimed = generation_key(generation + 1) in world.bucket.objects
        if standby or how != "is killed" or has_claimed is (victim == "leader"):
            goes_on(ENOUGH)
        return world
