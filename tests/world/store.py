"""The stores of a world: what they have is shared by all processes, each call takes time, and faults are scripted."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeVar

import attrs
from typing_extensions import override

from chandy.storage.errors import ObjectExistsError, ObjectMissingError, StoreFailedError
from chandy.storage.store import ObjectStat, Store

from .scheduler import EPOCH, Scheduler, SimulatedThread

T = TypeVar("T")


class Trouble(Enum):
    """What becomes of a call."""

    SLOW = "it takes its time"
    REFUSED = "it is refused in passing, and nothing is done"
    LOST = "it is carried out, and its answer is lost"
    LATE = "it seems to fail, and is carried out later"
    TWICE = "it is carried out, and again later"
    FULL = "it is refused for good"
    HANGS = "it takes longer than anybody waits"
    SHORT = "its answer is cut short"
    FLIPPED = "its answer has a wrong bit"
    MISSING = "its answer is that there is no such object"
    STALE = "its answer is of some time ago"


HANGS_SECONDS: Final = 600.0
ONCE_SECONDS: Final = 60.0
"""A store's answers about an object are wrong once in so long."""
OF_WRITES: Final = (Trouble.LATE, Trouble.TWICE, Trouble.FULL)
OF_READS: Final = (Trouble.SHORT, Trouble.FLIPPED, Trouble.MISSING)
OF_ALL: Final = (Trouble.SLOW, Trouble.REFUSED, Trouble.LOST, Trouble.HANGS)
OPERATIONS: Final = {"read": OF_ALL + OF_READS, "write": OF_ALL + OF_WRITES, "create": OF_ALL + OF_WRITES} | {
    "delete": (*OF_ALL, Trouble.FULL),
    "list": (*OF_ALL, Trouble.STALE),
    "stat": (*OF_ALL, Trouble.MISSING),
}
"""What may become of each kind of call."""


@attrs.define
class Fault:
    """What becomes of the next calls of a kind."""

    operation: str
    """One of ``OPERATIONS``."""
    part: str
    """Of the keys that it concerns."""
    trouble: Trouble
    times: int = 1
    seconds: float = 10.0
    """How long it takes, or how much later it happens."""


@attrs.frozen
class StoreAct:
    """A change of a store."""

    at: float
    """Seconds since the run began."""
    process: str
    operation: str
    key: str


@attrs.define(eq=False)
class Bucket:
    """What a store has."""

    uri: str
    objects: dict[str, bytes] = attrs.field(factory=dict)
    modified: dict[str, float] = attrs.field(factory=dict)
    """Seconds since the run began."""
    deleted: dict[str, tuple[float, bytes]] = attrs.field(factory=dict)
    """What it had, and until when."""
    acts: list[StoreAct] = attrs.field(factory=list)
    """All changes, the oldest first."""
    faults: list[Fault] = attrs.field(factory=list)
    """What is to happen; the first that fits a call does."""
    met: list[tuple[str, Trouble]] = attrs.field(factory=list)
    """What has happened."""
    longest: float = 0.05
    """Seconds that a call takes at most, if nothing is wrong."""
    hanging: list[tuple[SimulatedThread, int]] = attrs.field(factory=list)
    """Calls that hang."""
    damaged: dict[str, bytes] = attrs.field(factory=dict)
    """By object that is damaged what it was."""
    wrong: dict[str, float] = attrs.field(factory=dict)
    """By object when an answer about it was wrong."""
    version: int = 0
    """Counts the changes."""
    changing: Callable[[StoreAct], object] = lambda act: None
    """Told of each change, just before it is made."""

    def damage(self, key: str) -> None:
        """Have an object be another one, of the same size."""
        data = self.damaged[key] = self.objects[key]
        self.objects[key] = bytes([data[0] ^ 1, *data[1:]])

    def still_damaged(self) -> set[str]:
        """Return the objects that are damaged, and that nobody has written again since."""
        return {key for key, data in self.damaged.items() if self.objects.get(key) != data}

    def put_back(self) -> None:
        """Have all objects be again what they were."""
        self.objects.update((key, data) for key, data in self.damaged.items() if key in self.objects)
        self.damaged.clear()


class ScriptedStore(Store):
    """A store of a world; every process may have one.

    Args:
        scheduler: of the threads.
        bucket: what is in it.
    """

    def __init__(self, scheduler: Scheduler, bucket: Bucket) -> None:
        self.uri = bucket.uri
        self.bucket = bucket
        self._scheduler = scheduler
        self._random = scheduler.choices.stream("stores")

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        def act() -> bytes:
            if key not in self.bucket.objects:
                raise ObjectMissingError(self.uri, key)
            return self.bucket.objects[key][offset : None if length is None else offset + length]

        found, trouble = self._call("read", key, act)
        if trouble is Trouble.SHORT:
            return found[: len(found) // 2]
        if trouble is Trouble.FLIPPED and found:
            place = int(self._random.random() * len(found))
            return found[:place] + bytes([found[place] ^ 1]) + found[place + 1 :]
        return found

    @override
    def write(self, key: str, data: bytes) -> None:
        self._call("write", key, lambda: self._put("write", key, bytes(data)))

    @override
    def create(self, key: str, data: bytes) -> None:
        def act() -> None:
            if key in self.bucket.objects:
                raise ObjectExistsError(self.uri, key)
            self._put("create", key, bytes(data))

        self._call("create", key, act)

    @override
    def list(self, prefix: str = "") -> list[str]:
        bucket = self.bucket
        found, trouble = self._call("list", prefix, lambda: set(bucket.objects))
        if trouble is Trouble.STALE:
            ago = self._scheduler.now - 10.0
            found = {key for key in found if bucket.modified[key] < ago}
            found |= {key for key, (until, _) in bucket.deleted.items() if until > ago}
        return sorted(key for key in found if key.startswith(prefix))

    @override
    def delete(self, key: str) -> None:
        def act() -> None:
            if key in self.bucket.objects:
                self._note("delete", key)
                self.bucket.deleted[key] = self._scheduler.now, self.bucket.objects.pop(key)

        self._call("delete", key, act)

    @override
    def stat(self, key: str) -> ObjectStat:
        def act() -> ObjectStat:
            if key not in self.bucket.objects:
                raise ObjectMissingError(self.uri, key)
            return ObjectStat(len(self.bucket.objects[key]), EPOCH + self.bucket.modified[key])

        return self._call("stat", key, act)[0]

    @override
    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        return {key: self._stat_now(key) for key in self.list(prefix) if key in self.bucket.objects}

    def _stat_now(self, key: str) -> ObjectStat:
        return ObjectStat(len(self.bucket.objects[key]), EPOCH + self.bucket.modified[key])

    def _put(self, operation: str, key: str, data: bytes) -> None:
        self._note(operation, key)
        self.bucket.objects[key] = data
        self.bucket.modified[key] = self._scheduler.now

    def _note(self, operation: str, key: str) -> None:
        act = StoreAct(self._scheduler.now, self._scheduler.here.name, operation, key)
        self.bucket.changing(act)
        self.bucket.version += 1
        self.bucket.acts.append(act)

    def _call(self, operation: str, key: str, act: Callable[[], T]) -> tuple[T, Trouble | None]:
        """Carry a call out; return what it returns, and what is wrong with its answer."""
        fault = self._fault(operation, key)
        trouble = None if fault is None else fault.trouble
        self._travel()
        if fault is not None:
            if trouble is Trouble.SLOW:
                self._scheduler.sleep(fault.seconds, f"{operation} of {key}")
            elif trouble is Trouble.HANGS:
                self._scheduler.hold(self.bucket.hanging, HANGS_SECONDS, f"{operation} of {key}, which hangs")
            elif trouble is Trouble.REFUSED:
                raise StoreFailedError(self.uri, key, operation, "503 slow down", transient=True)
            elif trouble is Trouble.FULL:
                raise StoreFailedError(self.uri, key, operation, "507 insufficient storage")
            elif trouble is Trouble.MISSING:
                raise ObjectMissingError(self.uri, key)
            elif trouble is Trouble.LATE:
                self._later(fault.seconds, key, act)
                raise StoreFailedError(self.uri, key, operation, "timed out", transient=True)
        found = act()
        if trouble is Trouble.TWICE and fault is not None:
            self._later(fault.seconds, key, act)
        self._travel()
        if trouble is Trouble.LOST:
            raise StoreFailedError(self.uri, key, operation, "connection reset", transient=True)
        return found, trouble

    def _later(self, seconds: float, key: str, act: Callable[[], object]) -> None:
        """Carry a call out once more, unless the object has changed meanwhile: an attempt ends before the next one."""
        was = self.bucket.objects.get(key)

        def land() -> None:
            self._scheduler.sleep(seconds, f"{key} to land")
            if self.bucket.objects.get(key) is was:
                try:
                    act()
                except ObjectExistsError:
                    return

        self._scheduler.spawn(self._scheduler.world, land, f"late {key}")

    def _fault(self, operation: str, key: str) -> Fault | None:
        for fault in self.bucket.faults:
            if fault.operation == operation and fault.part in key and not self._is_wrong_again(fault, key):
                fault.times -= 1
                if fault.times <= 0:
                    self.bucket.faults.remove(fault)
                self.bucket.met.append((operation, fault.trouble))
                return fault
        return None

    def _is_wrong_again(self, fault: Fault, key: str) -> bool:
        """Whether it would be the second wrong answer about an object, or stale listing, in a short time.

        No second look helps against that: an object is damaged then.
        """
        if fault.trouble not in (*OF_READS, Trouble.STALE):
            return False
        now, last = self._scheduler.now, self.bucket.wrong.get(key, -ONCE_SECONDS)
        self.bucket.wrong[key] = now if now - last >= ONCE_SECONDS else last
        return now - last < ONCE_SECONDS

    def _travel(self) -> None:
        self._scheduler.sleep(self.bucket.longest * self._random.random() ** 2, "a store")
