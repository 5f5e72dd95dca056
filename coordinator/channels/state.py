"""What is in a channel at a cut, from what was seen at its two ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from ...storage.checkpoints.manifest import (
    ChannelRecord,
    Manifest,
    OutputRecord,
    QueryRecord,
    TopicPartition,
    UnreadFiles,
)
from ...storage.ids import CheckpointId
from ..sinks.place import Topic
from .links import Link
from .logs import Offsets, PublishedFile


@attrs.frozen
class Written:
    """What readers of a sink's target could see, seen after the writer was cut and before its checkpoint completed."""

    files: tuple[Collection[PublishedFile], ...] | None = None
    """Of a directory, in parts; None: not known."""
    epoch: int | None = None
    """The newest epoch that was visible. None: none, or not known, or the sink has no epochs."""
    offsets: Offsets = attrs.field(factory=dict)
    """Of topics."""


@attrs.frozen
class Read:
    """What a query had read at its cut."""

    files: tuple[frozenset[str], ...] | None = None
    """From directories, in parts; None: not known."""
    offsets: Offsets = attrs.field(factory=dict)


UNKNOWN_WRITTEN = Written()
UNKNOWN_READ = Read()


def records(
    links: Iterable[Link],
    manifest: Manifest,
    written: Mapping[tuple[str, str | None], Written],
    read: Mapping[str, Read],
) -> tuple[ChannelRecord, ...]:
    """Return the state of each channel at a checkpoint.

    Args:
        links: the channels.
        manifest: of the checkpoint, without them.
        written: by query and sink.
        read: by query.
    """
    queries = {query.name: query for query in manifest.queries}
    return tuple(
        _record(
            link,
            manifest.id,
            queries[link.writer],
            written.get((link.writer, link.sink), UNKNOWN_WRITTEN),
            read.get(link.reader, UNKNOWN_READ),
        )
        for link in links
        if link.writer in queries and link.reader in queries
    )


def _record(
    link: Link, checkpoint: CheckpointId, writer: QueryRecord, written: Written, read: Read
) -> ChannelRecord:
    output = next((one for one in writer.outputs if one.sink == link.sink), None)
    batch = None if writer.batch < 0 else writer.batch
    visible = _visible(output, written) if link.sink is not None else batch
    return ChannelRecord(
        writer=link.writer,
        sink=link.sink,
        reader=link.reader,
        target=str(link.place),
        published=visible,
        rows_to_publish=sum(
            epoch.rows for epoch in (output.epochs if output else ()) if visible is None or epoch.id > visible
        ),
        files=None if isinstance(link.place, Topic) else unread(written.files, read.files, checkpoint),
        partitions=_partitions(link.place, written.offsets, read.offsets)
        if isinstance(link.place, Topic)
        else (),
    )


def _visible(output: OutputRecord | None, written: Written) -> int | None:
    """The newest epoch that readers could see: the target may have it before the driver knows."""
    known = [epoch for epoch in (output.published if output else None, written.epoch) if epoch is not None]
    return max(known, default=None)


def unread(
    published: tuple[Collection[PublishedFile], ...] | None,
    read: tuple[frozenset[str], ...] | None,
    checkpoint: CheckpointId,
) -> UnreadFiles | None:
    """Return what of a directory's files nobody has read; None: not known.

    Args:
        published: what the log of the directory names, in parts.
        read: what the reader has read, in parts.
        checkpoint: the checkpoint. What later ones have published while it was being taken is not part of it.
    """
    if published is None or read is None:
        return None
    left = [file for part in published for file in part]
    # The largest part has nearly all.
    for part in sorted(read, key=len, reverse=True):
        left = [file for file in left if file.path not in part]
    left = [file for file in left if (epoch := file.epoch) is None or epoch <= checkpoint]
    rows = [file.rows for file in left if file.rows is not None]
    return UnreadFiles(
        len(left), sum(file.size for file in left), sum(rows) if len(rows) == len(left) else None
    )


def _partitions(place: Topic, written: Offsets, read: Offsets) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic, number, written.get((topic, number)), read.get((topic, number)))
        for topic, number in sorted(written.keys() | read.keys())
        if topic == place.name
    )
