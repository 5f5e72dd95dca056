"""What killed drivers and state hosts have left on this machine's disk, and deleting it.

A pipeline that starts again deletes what its earlier lives have left. What is left of one that never starts again is
found here: by the locks that living processes hold, and by its age, because a driver that is started again soon resumes
from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import attrs

from ...state.host.host_config import DISCOVERY_FOLDER, START_LOCK
from ...state.local import changelog
from ...storage.disk.directories import (
    CACHE,
    HOST_CHANGELOGS,
    HOSTS,
    QUERIES,
    runtime_directory,
    size_and_age,
)
from ...storage.disk.locks import try_acquire
from ...storage.disk.scratch import SCRATCH
from ...storage.disk.workspace import ALIVE, remove_unless_held, workspaces
from .run_record import boot_id, may_be_alive, read_records


@attrs.frozen
class Places:
    """Where this machine's drivers and state hosts keep their files."""

    work: Path
    """``CheckpointConfig.work_dir``."""
    cache: Path
    """``CheckpointConfig.cache_dir``."""
    runtime: Path

    @classmethod
    def of(cls, work: Path | None = None, cache: Path | None = None) -> Places:
        """Return the default places, with those that a pipeline was given by its configuration."""
        runtime = runtime_directory()
        return cls(work or runtime / QUERIES, cache or runtime / CACHE, runtime)


@attrs.frozen
class Leftover:
    """A directory that was left behind."""

    path: Path
    what: str
    """The process that has left it."""
    bytes: int
    written_at: float
    """When something in it was last written, in seconds since 1970."""
    in_use: bool
    """Whether a living process holds it, or may still write into it."""
    locks: tuple[str, ...] = ()
    """The lock files in it that a living process holds."""
    kind: str = ""
    """What its record says, if it has lock files."""
    owner: Path | None = None
    """The directory whose fate it shares; None: its own."""


@attrs.frozen
class Cleaned:
    """What ``clean`` found."""

    deleted: tuple[Leftover, ...]
    """What nobody uses. It was deleted unless it was a dry run."""
    young: tuple[Leftover, ...]
    """What nobody uses, but was written not long ago, so that its pipeline may resume from it."""
    in_use: int
    """Directories that living processes use."""
    failed: dict[str, str]
    """Why directories that nobody uses could not be deleted, by path."""

    @property
    def bytes(self) -> int:
        """Bytes of what was deleted."""
        return sum(leftover.bytes for leftover in self.deleted)


def clean(places: Places, now: float, older_than: float, dry_run: bool = False) -> Cleaned:
    """Delete what processes that are gone have left on this machine.

    Args:
        places: where to look. What is there besides is not touched.
        now: seconds since 1970.
        older_than: seconds that must have passed since it was last written.
        dry_run: find it but do not delete it.
    """
    found = list(_find(places))
    old = [one for one in found if not one.in_use and now - one.written_at >= older_than]
    young = [one for one in found if not one.in_use and now - one.written_at < older_than]
    failed = {} if dry_run else dict(_delete(old))
    return Cleaned(
        deleted=tuple(one for one in old if str(one.path) not in failed),
        young=tuple(young),
        in_use=sum(one.in_use for one in found),
        failed=failed,
    )


def _find(places: Places) -> Iterator[Leftover]:
    drivers = [_driver(path) for path in workspaces(places.work, QUERIES)]
    yield from drivers
    yield from _changelogs(places.cache / changelog.FOLDER, drivers)
    for path in workspaces(places.cache / HOSTS, HOSTS):
        yield _leftover(path, "a state host", HOSTS, (ALIVE,))
    for path in workspaces(places.cache / HOST_CHANGELOGS, HOST_CHANGELOGS):
        yield _leftover(path, "changelogs of a state host", HOST_CHANGELOGS, (ALIVE,))
    for path in workspaces(places.runtime / DISCOVERY_FOLDER, DISCOVERY_FOLDER):
        yield _leftover(path, "the log and socket of a state host", DISCOVERY_FOLDER, (START_LOCK, ALIVE))
    for path in workspaces(places.runtime / SCRATCH, SCRATCH):
        yield _leftover(path, "files of a moment", SCRATCH, (ALIVE,))


def _driver(path: Path) -> Leftover:
    records = [record for record, _ in read_records(path)]
    roots = sorted({record.root for record in records})
    # The driver's JVM may outlive it for a moment.
    lives = any(record.boot == boot_id() and may_be_alive(record.java) for record in records)
    what = f"a driver of {', '.join(roots)}" if roots else "a driver"
    return _leftover(path, what, QUERIES, (ALIVE,), in_use=lives)


def _changelogs(folder: Path, drivers: Iterable[Leftover]) -> Iterator[Leftover]:
    """Yield the changelogs of each run: those of a driver that was found share its fate, others are orphans."""
    by_path = {driver.path: driver for driver in drivers}
    for path, owner in changelog.runs(folder):
        driver = by_path.get(owner)
        if driver is not None:
            found = _leftover(path, f"changelogs of {driver.what}", in_use=driver.in_use, owner=driver.path)
            yield attrs.evolve(found, written_at=max(found.written_at, driver.written_at))
        elif not owner.exists():
            yield _leftover(path, "changelogs of a driver that is gone")


def _leftover(
    path: Path,
    what: str,
    kind: str = "",
    locks: tuple[str, ...] = (),
    *,
    in_use: bool = False,
    owner: Path | None = None,
) -> Leftover:
    size, written_at = size_and_age(path)
    return Leftover(
        path,
        what,
        size,
        written_at,
        in_use or any(_is_held(path / name) for name in locks),
        locks,
        kind,
        owner,
    )


def _is_held(path: Path) -> bool:
    if not path.exists():
        return False
    lock = try_acquire(path)
    if lock is not None:
        lock.release()
    return lock is None


def _delete(leftovers: Iterable[Leftover]) -> Iterator[tuple[str, str]]:
    """Delete directories, and yield those that stay, with the reason."""
    stays: set[Path] = set()
    for one in leftovers:
        if (reason := _reason(one, stays)) is not None:
            stays.add(one.path)
            yield str(one.path), reason


def _reason(one: Leftover, stays: Collection[Path]) -> str | None:
    """Delete a directory; return why it stays, None if it is gone."""
    # A process may have begun to use it since it was looked at.
    held = bool(one.locks) and not remove_unless_held(one.path, one.kind, *one.locks) and one.path.exists()
    if held or one.owner in stays:
        return "a process has begun to use it"
    try:
        shutil.rmtree(one.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error)
    return None
