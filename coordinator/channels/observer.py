"""Looks at both ends of each channel while a checkpoint is taken: a checkpoint never waits long for it, or fails."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

import attrs
from typing_extensions import override

from ...storage import runtime
from ...storage.backends.open import open_store
from ...storage.checkpoints.manifest import ChannelRecord, Manifest
from ...storage.errors import ChandyError, ObjectMissingError
from ...storage.ids import BatchId
from ...storage.logs import logger
from ...storage.store import Store
from ..query import Definition
from ..sinks import directory_log
from ..sinks.place import Topic
from ..sinks.sink import Sink
from ..spark.logs.compact_log import entry_number
from .contract import Channels
from .links import Link, Node, links
from .logs import PublishedFile, offsets, published, read
from .state import Read, Written, records

log = logger(__name__)

T = TypeVar("T")

MOST_BYTES: Final = 32 << 20
"""Bytes of the logs of one end from which on they are not looked at: that would take too long."""
_LOOK_SECONDS: Final = 2.0
"""How long a look at the log of a directory may take at most: the writer's target may be away."""
_PAUSE_SECONDS: Final = 60.0
"""The pause after one that has failed."""
_REMEMBERED: Final = 4
"""How many cuts of a query are remembered. More checkpoints are hardly ever taken at a time."""


class ObservedChannels(Channels):
    """The channels of a pipeline, and what was seen at their ends. All methods may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = runtime.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[str, Node] = {}
        self._links: tuple[Link, ...] = ()
        self._written: dict[str, OrderedDict[BatchId, Mapping[str | None, Written]]] = {}
        """By query and cut, what readers of its sinks could see."""
        self._read: dict[str, OrderedDict[BatchId, Read]] = {}
        self._logs: dict[str, _Log] = {}
        """By the URI of a directory."""
        self._not_before: dict[Topic, float] = {}
        """When a topic is looked at again that could not be."""
        self._published = _Entries(published)
        self._sources = _Entries(read)
        self._lock = runtime.lock()

    @override
    def add(self, definition: Definition) -> bool:
        node = node_of(definition)
        with self._lock:
            added = links(node, self._nodes.values())
            self._nodes[node.name] = node
            self._links += added
        for link in added:
            log.info(
                "one query reads what another writes",
                writer=link.writer,
                reader=link.reader,
                target=str(link.place),
            )
        return any(link.writer == node.name for link in added)

    @override
    def remove(self, query: str) -> None:
        with self._lock:
            self._nodes.pop(query, None)
            self._links = tuple(link for link in self._links if query not in (link.writer, link.reader))

    @override
    def look(
        self, definition: Definition, cut: BatchId, working: Mapping[str, Path], kept: Mapping[str, Path]
    ) -> None:
        name = definition.name
        writes = {link.sink: link for link in self._links if link.writer == name}
        reads = any(link.reader == name for link in self._links)
        if writes:
            seen = {
                sink: self._carefully(
                    lambda link=link: self._look_at_sink(definition, link, kept),  # type: ignore[misc]
                    Written(),
                )
                for sink, link in writes.items()
            }
            self._remember(self._written, name, cut, seen)
        if reads:
            self._remember(
                self._read,
                name,
                cut,
                self._carefully(lambda: self._look_at_sources(name, cut, working), Read()),
            )

    @override
    def at(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        with self._lock:
            batches = {query.name: query.batch for query in manifest.queries}
            written = {
                (name, sink): one
                for name, batch in batches.items()
                if name in self._written
                for sink, one in self._written[name].get(batch, {}).items()
            }
            read = {
                name: self._read[name][batch]
                for name, batch in batches.items()
                if batch in self._read.get(name, ())
            }
            return records(self._links, manifest, written, read)

    def _remember(self, seen: dict[str, OrderedDict[BatchId, T]], query: str, cut: BatchId, what: T) -> None:
        with self._lock:
            by_cut = seen.setdefault(query, OrderedDict())
            by_cut[cut] = what
            by_cut.move_to_end(cut)
            while len(by_cut) > _REMEMBERED:
                by_cut.popitem(last=False)

    def _carefully(self, look: Callable[[], T], otherwise: T) -> T:
        try:
            return look()
        except Exception as error:  # noqa: BLE001 (a checkpoint does not need it)
            log.warning("cannot tell what is between two queries", error=str(error) or repr(error))
            return otherwise

    # --- the end of a writer --------------------------------------------------------------------------------

    def _look_at_sink(self, definition: Definition, link: Link, kept: Mapping[str, Path]) -> Written:
        if link.sink is None:
            return Written(self._published.of(definition.name, _since_latest_compact(kept)))
        if isinstance(link.place, Topic):
            return self._look_at_topic(definition.sink, link.sink, link.place)
        with self._lock:
            found = self._logs.setdefault(link.place.store, _Log(link.place.store))
        return found.look(definition.sink.writer_of(link.sink), self._clock())

    def _look_at_topic(self, sink: Sink, uid: str, topic: Topic) -> Written:
        now = self._clock()
        if now < self._not_before.get(topic, now):
            return Written()
        try:
            ends = sink.committed_offsets(uid, _LOOK_SECONDS)
        except ChandyError:
            self._not_before[topic] = now + _PAUSE_SECONDS
            raise
        return Written(offsets={(topic.name, number): end for number, end in ends.items()})

    # --- the end of a reader --------------------------------------------------------------------------------

    def _look_at_sources(self, query: str, cut: BatchId, working: Mapping[str, Path]) -> Read:
        log_entry = working.get(f"offsets/{cut}")
        logs = {name: path for name, path in working.items() if name.startswith("sources/")}
        by_source: dict[str, dict[str, Path]] = {}
        for name, path in logs.items():
            _, source, entry = name.split("/", 2)
            if entry_number(entry) is not None:
                by_source.setdefault(source, {})[entry] = path
        chosen = {
            f"{source}/{entry}": path
            for source, entries in by_source.items()
            for entry, path in _since_latest_compact(entries).items()
        }
        files = self._carefully(lambda: self._sources.of(query, chosen), None)
        return Read(files, offsets(log_entry.read_text()) if log_entry else {})


def node_of(definition: Definition) -> Node:
    """Return a query as far as its channels go."""
    return Node(
        definition.name,
        definition.sink.outputs,
        definition.facts.sources,
        definition.facts.ignores_sink_log,
    )


def _is_too_much(paths: Iterable[Path]) -> bool:
    return sum(path.stat().st_size for path in paths) > MOST_BYTES


def _since_latest_compact(entries: Mapping[str, Path]) -> dict[str, Path]:
    """Return the entries that count: a compact one repeats all before it."""
    numbers = {name: number for name in entries if (number := entry_number(name)) is not None}
    latest = max((number for name, number in numbers.items() if name.endswith(".compact")), default=-1)
    return {
        name: entries[name]
        for name, number in numbers.items()
        if number > latest or (number == latest and name.endswith(".compact"))
    }


class _Entries(Generic[T]):
    """What entries of logs name. One that is as it was is not taken apart again: it may name all files ever read."""

    def __init__(self, parse: Callable[[bytes], T]) -> None:
        self._parse = parse
        self._known: dict[str, dict[str, tuple[tuple[int, int], T]]] = {}
        """By query and name, what tells an entry from others, and what it names."""

    def of(self, query: str, entries: Mapping[str, Path]) -> tuple[T, ...] | None:
        """Return what the entries name, one by one; None if they are too large."""
        if _is_too_much(entries.values()):
            self._known.pop(query, None)
            return None
        before, found = self._known.get(query, {}), {}
        for name, path in entries.items():
            data = path.read_bytes()
            fingerprint = len(data), hash(data)
            known = before.get(name)
            found[name] = known if known and known[0] == fingerprint else (fingerprint, self._parse(data))
        self._known[query] = found
        return tuple(named for _, named in found.values())


@attrs.define
class _Log:
    """The log of a directory that Chandy publishes into, as far as it was read. Its entries never change."""

    uri: str
    _files: list[tuple[PublishedFile, ...]] = attrs.field(factory=list, init=False)
    """By entry."""
    _bytes: int = attrs.field(default=0, init=False)
    _newest: bytes | None = attrs.field(default=None, init=False)
    _number: int | None = attrs.field(default=None, init=False)
    """The newest entry that was read; None: none was looked for."""
    _not_before: float = attrs.field(default=0.0, init=False)
    _lock: runtime.Lock = attrs.field(factory=runtime.lock, init=False)

    def look(self, writer: str, now: float) -> Written:
        """Read what is new.

        Args:
            writer: as the log names it.
            now: seconds of a clock that does not go back.
        """
        with self._lock:
            if now < self._not_before or self._bytes > MOST_BYTES:
                return Written()
            try:
                self._read_on(open_store(self.uri).within(_LOOK_SECONDS))
            except (OSError, ChandyError):
                self._not_before = now + _PAUSE_SECONDS
                raise
            if self._bytes > MOST_BYTES:
                self._files.clear()
                return Written()
            positions = directory_log.positions_of(self._newest) if self._newest is not None else None
            own = (positions or {}).get(writer)
            return Written(tuple(self._files), own.epoch if own else None)

    def _read_on(self, store: Store) -> None:
        if self._number is None:
            newest = directory_log.newest_of(store.list(directory_log.FOLDER))
            if newest < 0:
                return
            # The latest entry that repeats all before it, and those after it.
            self._number = directory_log.first_read(newest) - 1
        while self._bytes <= MOST_BYTES:
            number = self._number + 1
            try:
                data = store.read(directory_log.key_of(number))
            except ObjectMissingError:
                newest = directory_log.newest_of(store.list(directory_log.FOLDER))
                if newest <= number:
                    return
                # It is so old that it is deleted.
                self._number = directory_log.first_read(newest) - 1
                continue
            files, repeats = published(data), directory_log.is_compacted(number)
            if repeats:
                # It says all, and some that were there may have left the log.
                self._files.clear()
            self._files.append(files)
            self._bytes = len(data) + (0 if repeats else self._bytes)
            self._number, self._newest = number, data
