"""Leadership: one driver at a time writes into a pipeline's sinks.

A successor fences its predecessor by its claim, which ends the predecessor's checkpoints at once. It does not end what
Spark is doing: a batch that is under way publishes. So nobody touches a sink before the predecessor has stepped
down: all its queries have ended, or it is dead.
"""

from __future__ import annotations

import enum
import math
import os
import socket
from collections.abc import Callable
from typing import Final

import attrs

from ...state.local.machine import machine_id
from ...state.local.processes import Process, is_stopped
from ...storage import runtime
from ...storage.backends.open import open_store
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.fencing import Claim, DriverRecord, LeaseRecord
from ...storage.errors import ChandyError, FencedError
from ...storage.logs import logger
from ..errors import PredecessorRunsError
from .election import Leader, Sighting, Silence
from .lease import HeldLease

log = logger(__name__)

_END_SECONDS: Final = 1.0
"""How long is waited for queries that were stopped: Spark waits for them itself, unless it was told not to."""
_POLL_SECONDS: Final = 0.02
_LONGEST_POLL_SECONDS: Final = 0.5
_SLOWER: Final = 1.5
"""From one look whether a predecessor has stepped down to the next, from the one pause to the other."""


# --- the decision -------------------------------------------------------------------------------------------


class Sign(enum.Enum):
    """What is known of a driver whose record says that it is a leader."""

    DEAD = "its processes have ended, or it has stepped down without saying so"
    LIVES = "it lives on this machine"
    UNKNOWN = (
        "it is on another machine, or in another container; or it is here and no longer renews its lease"
    )


class Verdict(enum.Enum):
    """What a successor does about a predecessor that is a leader still."""

    GO_ON = "it writes no more"
    WAIT = "it may step down yet"
    TAKE_FOR_DEAD = "it has had its time, and gives no sign"
    GIVE_UP = "it has had its time, and lives"


def judge(sign: Sign, waited: float, patience: float) -> Verdict:
    """Decide about a predecessor that is a leader still.

    Args:
        sign: what is known of it.
        waited: seconds since it was fenced.
        patience: seconds that it has for ending its queries.
    """
    if sign is Sign.DEAD:
        return Verdict.GO_ON
    if waited < patience:
        return Verdict.WAIT
    return Verdict.GIVE_UP if sign is Sign.LIVES else Verdict.TAKE_FOR_DEAD


# --- being the leader ---------------------------------------------------------------------------------------


@attrs.define
class Leadership:
    """The time in which one generation may write into the pipeline's sinks."""

    catalog: Catalog
    driver: DriverRecord
    lease: HeldLease | None = None
    """Renewed as long as this lasts; None if there is nobody to tell."""
    _told: FencedError | None = attrs.field(default=None, init=False)
    _tell: Callable[[FencedError], object] | None = attrs.field(default=None, init=False)
    _lock: runtime.Lock = attrs.field(factory=runtime.lock, init=False, repr=False)

    @classmethod
    def take(
        cls,
        catalog: Catalog,
        claim: Claim,
        java: Process,
        lease_seconds: float | None = None,
    ) -> Leadership:
        """Take leadership for a claimed generation; a predecessor may not have stepped down yet.

        Args:
            catalog: the pipeline's catalog.
            claim: of the generation.
            java: the JVM that Spark runs in.
            lease_seconds: the time of the lease that standbys watch; None: keep no lease.
        """
        own = Process.of(os.getpid())
        driver = DriverRecord(
            claim.generation,
            host=socket.gethostname(),
            machine=machine_id(),
            pid=own.pid,
            started=own.started,
            java=java.pid,
            java_started=java.started,
            nonce=runtime.token(),
        )
        lease = None if lease_seconds is None else HeldLease(catalog, claim.generation, lease_seconds)
        leadership = cls(catalog, driver, lease)
        runtime.own(LocalLeaders).add(leadership)
        try:
            # Before the driver's record: a standby waits for ever for a driver that keeps no lease.
            if lease is not None:
                lease.begin()
            catalog.take_leadership(driver)
        except BaseException:
            leadership.step_down()
            raise
        return leadership

    def listen(self, tell: Callable[[FencedError], object]) -> None:
        """Say whom a successor in this process tells that it has come."""
        with self._lock:
            self._tell = tell
            told = self._told
        if told is not None:
            tell(told)

    def fence(self, error: FencedError) -> None:
        """Tell the driver at once that it has a successor, which it would find out by itself a little later."""
        with self._lock:
            is_new, self._told = self._told is None, error
            tell = self._tell
        if is_new and tell is not None:
            tell(error)

    def step_down_after(self, ended: Callable[[float | None], bool]) -> None:
        """Step down once all queries have ended: now, or later in the background.

        Args:
            ended: waits for that, so many seconds at most; returns whether they have.
        """
        if ended(_END_SECONDS):
            self.step_down()
            return
        log.warning("queries have not ended yet; a successor waits for them", driver=_described(self.driver))

        def step_down_later() -> None:
            ended(None)
            self.step_down()

        runtime.thread(target=step_down_later, name="chandy-leadership").start()

    def step_down(self) -> None:
        """Step down: this generation writes into no sink any more. Calls after the first do nothing."""
        if not runtime.own(LocalLeaders).remove(self):
            return
        if self.lease is not None:
            self.lease.end()
        try:
            self.catalog.step_down(self.driver.generation)
        except (OSError, ChandyError) as error:
            # A successor in this process knows all the same, and one in another finds out when this one ends.
            log.warning("cannot record that the pipeline's queries have ended", error=str(error))

    def hold_lease(self) -> float:
        """Renew the lease if a standby may have taken over meanwhile; return since when it is held without a gap.

        Raises:
            StorageError: nobody knows.
        """
        return -math.inf if self.lease is None else self.lease.hold()

    def stop(self) -> None:
        """Record that the pipeline is stopped on purpose, so that no standby takes it over."""
        if self.lease is not None:
            self.lease.stop()


class LocalLeaders:
    """All leaders in this process."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._by_nonce: dict[str, Leadership] = {}

    def add(self, leadership: Leadership) -> None:
        """Add one."""
        with self._lock:
            self._by_nonce[leadership.driver.nonce] = leadership

    def remove(self, leadership: Leadership) -> bool:
        """Remove one; return whether it was there."""
        with self._lock:
            return self._by_nonce.pop(leadership.driver.nonce, None) is not None

    def get(self, driver: DriverRecord) -> Leadership | None:
        """Return that of a driver's record; None if it is none of this process, or has stepped down."""
        with self._lock:
            return self._by_nonce.get(driver.nonce)


# --- following a predecessor --------------------------------------------------------------------------------


def await_predecessors(
    catalog: Catalog, claim: Claim, patience: float, silence: Silence | None = None
) -> None:
    """Wait until no predecessor of a claimed generation writes into the pipeline's sinks.

    Args:
        catalog: the pipeline's catalog.
        claim: of the generation.
        patience: seconds that the predecessors have for ending their queries.
        silence: the predecessor whose lease has run out before the claim, by ``time.monotonic``.

    Raises:
        PredecessorRunsError: one lives on this machine and has not ended its queries.
        FencedError: meanwhile a higher generation has taken over.
    """
    began = runtime.monotonic()
    for driver in catalog.leaders_before(claim.generation):
        if (
            silence is not None
            and silence.generation == driver.generation
            # A driver looks for a successor after it has renewed a lease that may have run out: one of the two sees
            # the other.
            and catalog.lease(driver.generation) == silence.lease
        ):
            _await(catalog, claim, driver, silence.since, patience, is_silent=True)
        else:
            _await(catalog, claim, driver, began, patience)


def has_leader(uri: str) -> bool:
    """Return whether a driver of the pipeline with this store writes into its sinks, as far as one can know."""
    catalog = Catalog(open_store(uri))
    newest = catalog.newest_generation()
    drivers = catalog.leaders_before(newest + 1)
    return any(_sign(catalog, driver) is not Sign.DEAD for driver in drivers)


def _await(
    catalog: Catalog,
    claim: Claim,
    driver: DriverRecord,
    began: float,
    patience: float,
    *,
    is_silent: bool = False,
) -> None:
    pause, announced = _POLL_SECONDS, False
    lease = catalog.lease(driver.generation)
    while True:
        sign = _sign(catalog, driver)
        waited = runtime.monotonic() - began
        is_elsewhere = sign is Sign.LIVES and not _is_own_process(driver)
        if is_elsewhere and (is_silent or _is_still(catalog, driver, lease, waited)):
            # Frozen. Like a driver on another machine, it begins no batch when it wakes before it has looked for a
            # successor. This process is not: what its JVM runs for the other driver goes on.
            sign = Sign.UNKNOWN
        if sign is Sign.DEAD:
            catalog.step_down(driver.generation)
            return
        _fence_here(catalog, claim, driver)
        match judge(sign, waited, patience):
            case Verdict.GIVE_UP:
                raise _still_runs(catalog, driver, patience)
            case Verdict.TAKE_FOR_DEAD:
                _end_java(catalog, driver, patience)
                log.warning(
                    "the driver before does not answer, and is taken for dead",
                    storage=catalog.store.uri,
                    driver=_described(driver),
                    seconds=patience,
                )
                catalog.step_down(driver.generation)
                return
        if not announced:
            announced = True
            log.warning(
                "waiting for the driver before to end its queries",
                storage=catalog.store.uri,
                driver=_described(driver),
                at_most_seconds=patience,
            )
        runtime.sleep(pause)
        pause = min(pause * _SLOWER, _LONGEST_POLL_SECONDS)
        if catalog.leader(driver.generation) is None:
            log.info("the driver before has ended its queries", driver=_described(driver))
            return
        catalog.check_not_fenced(claim.generation)


def _is_still(catalog: Catalog, driver: DriverRecord, before: LeaseRecord | None, waited: float) -> bool:
    """Return whether a driver keeps a lease, and it has run out since."""
    return before is not None and waited >= before.seconds and catalog.lease(driver.generation) == before


def sight(catalog: Catalog) -> tuple[Sighting, DriverRecord | None]:
    """Look at the driver of the newest generation, for a standby. Returns its record, too, if it is a leader.

    Raises:
        StorageError: the storage does not answer.
    """
    began = runtime.monotonic()
    newest = catalog.newest_generation()
    # A driver records its lease, then that it leads, then that it has started, and at its end that it was stopped, then
    # that it leads no more. This order of requests shows no end of a driver that is only beginning.
    has_started = catalog.has_started(newest)
    driver = catalog.leader(newest)
    lease = catalog.lease(newest)
    leader = Leader.NONE if driver is None else Leader.DEAD if is_dead(catalog, driver) else Leader.THERE
    return Sighting(newest, leader, has_started, lease, began, runtime.monotonic()), driver


def is_dead(catalog: Catalog, driver: DriverRecord) -> bool:
    """Return whether a driver's processes on this machine have ended; False if nobody can tell."""
    return _sign(catalog, driver) is Sign.DEAD


def claimant() -> str:
    """Return what a claim says of who has made it, if that is this process."""
    return f"{socket.gethostname()}, process {os.getpid()}"


def has_ended(driver: DriverRecord) -> bool:
    """Return whether the program of a driver was on this machine and has ended; its JVM may live on for a moment.

    A machine that was started again has another id and the same name, and so has a container.
    """
    if driver.machine != machine_id():
        return driver.host == socket.gethostname()
    if _is_own_process(driver):
        return runtime.own(LocalLeaders).get(driver) is None
    return not Process(driver.pid, driver.started).lives


def _sign(catalog: Catalog, driver: DriverRecord) -> Sign:
    if driver.machine != machine_id():
        return Sign.UNKNOWN
    python, java = Process(driver.pid, driver.started), Process(driver.java, driver.java_started)
    if _is_own_process(driver):
        return Sign.DEAD if runtime.own(LocalLeaders).get(driver) is None else Sign.LIVES
    # When a driver is killed its JVM lives on for a moment, and may write into a sink.
    return Sign.LIVES if python.lives or java.lives else Sign.DEAD


def _is_own_process(driver: DriverRecord) -> bool:
    own = driver.machine == machine_id() and driver.pid == os.getpid()
    return own and Process(driver.pid, driver.started).lives


def _end_java(catalog: Catalog, driver: DriverRecord, patience: float) -> None:
    """End the JVM of a driver of this machine whose Python does nothing any more: its queries would go on writing.

    Raises:
        PredecessorRunsError: it cannot be ended.
    """
    if driver.machine != machine_id() or driver.pid == os.getpid():
        return
    java = Process(driver.java, driver.java_started)
    if java.lives:
        log.warning("ending the JVM of the driver before, which is frozen", process=java.pid)
    if not java.kill():
        raise _still_runs(catalog, driver, patience)


def _fence_here(catalog: Catalog, claim: Claim, driver: DriverRecord) -> None:
    if (leadership := runtime.own(LocalLeaders).get(driver)) is not None:
        leadership.fence(FencedError(catalog.store.uri, driver.generation, claim.generation, claim.owner))


def _still_runs(catalog: Catalog, driver: DriverRecord, patience: float) -> PredecessorRunsError:
    if driver.pid == os.getpid():
        found, advice = "this process", "stop its coordinator, or start this program anew"
    elif is_stopped(driver.pid):
        found = f"process {driver.pid} on {driver.host}, which is suspended (SIGSTOP)"
        advice = f"end it (kill -9 {driver.pid}) or let it go on (kill -CONT {driver.pid}), then start again"
    else:
        found = f"process {driver.pid} on {driver.host} (its JVM is process {driver.java})"
        advice = f"end it (kill {driver.pid} {driver.java}), then start again; or give it more time by takeover_timeout"
    return PredecessorRunsError(
        f"the pipeline in {catalog.store.uri} cannot be taken over yet",
        f"the driver before, generation {driver.generation}, to end its queries within {patience:g} s",
        f"it running in {found}",
        f"{advice}. It has been told to stop, and nothing else was changed",
    )


def _described(driver: DriverRecord) -> str:
    return f"generation {driver.generation}, process {driver.pid} on {driver.host}"
