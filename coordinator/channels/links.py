"""Which query reads what another one writes, found by comparing sinks with sources; and what cannot be consistent.

A *channel* leads from a sink of one query to a source of another. What is in it at a cut, the writer's part of the
checkpoint has, and the reader's has not. The rows lie in the sink's target, and those that are not published yet in the
checkpoint itself: so, unlike in Chandy's and Lamport's paper, a checkpoint need not copy them. Two things are needed:

* The reader must not have read what is rolled back. A transactional sink publishes an epoch once its checkpoint is
  complete, so whatever is visible belongs to an earlier checkpoint than the one that is being taken, and stays: to go
  back behind it is refused (``OutputAheadError``), or it is published again and the reader gets it twice, which is what
  a permit says. Spark's own file sink shows a batch at once. So the reader is cut before the writer
  (``barrier.cut``), and both go back together; and the reader must be started after the writer, because in a new life
  of the driver a reader that runs already would see batches that the writer is about to take back.
* The reader must see whole epochs or batches. Those who follow the log of a directory, or read what is committed in
  Kafka, do. Those who list the directory would see files that are being written, files of a batch that ran twice, and
  files of an epoch that never was published.

So the three ways to break this are refused. Everything else is consistent in any order of cuts, also if queries read
each other's output in a circle through transactional sinks.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from urllib.parse import quote

import attrs

from ..errors import WriterError
from ..sinks.place import Directory, Output, OutputTarget, Topic, directory_path
from ..spark.local_path import is_local, local_path
from ..spark.writer_facts import SourceFacts

_GLOB = re.compile(r"[*?\[{]")


@attrs.frozen
class Node:
    """A query, as far as its channels go."""

    name: str
    outputs: tuple[Output, ...]
    sources: tuple[SourceFacts, ...]
    ignores_sink_log: bool = False
    """Whether its file sources list directories that have a log."""


@attrs.frozen
class Link:
    """A channel: one query reads what a sink of another writes."""

    writer: str
    sink: str | None
    """Uid of the transactional sink; None: Spark's own file sink."""
    reader: str
    place: OutputTarget


class ReadingMode(enum.Enum):
    """How a source reads a place."""

    NOT = "not at all"
    WHOLE = "whole epochs or batches"
    BY_LISTING = "by listing files"
    UNCOMMITTED = "also what is not committed"


def links(new: Node, others: Iterable[Node]) -> tuple[Link, ...]:
    """Return the channels that a query adds to a pipeline.

    Args:
        new: the query that is about to start.
        others: those that were started before it.

    Raises:
        WriterError: a reader could see what is taken back, or what never was published.
    """
    found = []
    for other in others:
        found += _between(other, new)
        back = _between(new, other)
        if early := next((link for link in back if link.sink is None), None):
            raise WriterError(
                f"query {new.name!r} cannot be started",
                f"an output that no query reads which runs already, because {new.name!r} may take back what it has "
                "written since the checkpoint",
                f"the directory {early.place}, which {other.name!r} reads",
                f"start {new.name!r} before {other.name!r}; or write with a FilesSink, which takes nothing back",
            )
        found += back
    return (*found, *_between(new, new))


def _between(writer: Node, reader: Node) -> list[Link]:
    found: dict[Link, None] = {}
    for output in writer.outputs:
        for source in reader.sources:
            how = reading(source, output.place, ignores_sink_log=reader.ignores_sink_log)
            if how in (ReadingMode.BY_LISTING, ReadingMode.UNCOMMITTED):
                raise _refused(writer.name, reader.name, source, output.place, how)
            if how is ReadingMode.WHOLE:
                found[Link(writer.name, output.sink, reader.name, output.place)] = None
    return list(found)


def reading(source: SourceFacts, place: OutputTarget, *, ignores_sink_log: bool = False) -> ReadingMode:
    """Return how a source reads a place."""
    match place:
        case Directory(path):
            if "path" not in source.options:
                return ReadingMode.NOT
            return _reading_directory(_path_of(source.options["path"]), path, ignores_sink_log)
        case Topic(servers, name):
            if not servers & Topic.servers_of(source.options.get("kafka.bootstrap.servers", "")):
                return ReadingMode.NOT
            if not _subscribes(source, name):
                return ReadingMode.NOT
            level = source.options.get("kafka.isolation.level", "read_uncommitted")
            return ReadingMode.WHOLE if level == "read_committed" else ReadingMode.UNCOMMITTED


def _path_of(option: str) -> str:
    """Return the path of a source, which is not percent-encoded, as places have it."""
    return directory_path(
        local_path(option, role="input").as_uri() if is_local(option) else quote(option, ":/")
    )


def _reading_directory(path: str, directory: str, ignores_sink_log: bool) -> ReadingMode:
    if path == directory:
        return ReadingMode.BY_LISTING if ignores_sink_log else ReadingMode.WHOLE
    patterns, names = path.split("/"), directory.split("/")
    # A source lists all that is below its path, and its path may be below the directory.
    common = zip(patterns, names, strict=False)
    if all(pattern == name or _matches(pattern, name) for pattern, name in common):
        return ReadingMode.BY_LISTING
    return ReadingMode.NOT


def _matches(pattern: str, name: str) -> bool:
    """Whether one part of a path fits a pattern of Hadoop's."""
    if not _GLOB.search(pattern) or name.startswith(("_", ".")):
        return False
    text, in_braces = "", False
    for character in pattern:
        in_braces = (in_braces or character == "{") and character != "}"
        text += {
            "*": ".*",
            "?": ".",
            "{": "(?:",
            "}": ")",
            ",": "|" if in_braces else ",",
            "[": "[",
            "]": "]",
            "^": "^",
            "-": "-",
        }.get(character, re.escape(character))
    try:
        return re.fullmatch(text, name) is not None
    except re.error:
        return False


def _subscribes(source: SourceFacts, topic: str) -> bool:
    named = [one.strip() for one in source.options.get("subscribe", "").split(",")]
    if topic in named or f'"{topic}"' in source.options.get("assign", ""):
        return True
    pattern = source.options.get("subscribepattern")
    try:
        return pattern is not None and re.fullmatch(pattern, topic) is not None
    except re.error:
        # One of Java's own.
        return False


def _refused(
    writer: str, reader: str, source: SourceFacts, place: OutputTarget, how: ReadingMode
) -> WriterError:
    what = f"query {reader!r} cannot read what {writer!r} writes"
    if how is ReadingMode.UNCOMMITTED:
        return WriterError(
            what,
            f"kafka.isolation.level=read_committed for {place}, because a transaction may be taken back",
            source.options.get("kafka.isolation.level", "Kafka's default, read_uncommitted"),
            'set option("kafka.isolation.level", "read_committed") on the source',
        )
    return WriterError(
        what,
        f"the directory {place} itself as the path, so that Spark follows its log: a list of the files has some that "
        "never were published, or come twice",
        source.options["path"]
        if source.options["path"] != str(place)
        else "fileStreamSink.ignoreMetadata=true",
        "read that directory and filter its rows, or have the two write and read apart",
    )
