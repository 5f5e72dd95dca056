"""Where readers find the output of a query's sinks, by which it is known who reads it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

import attrs

_LOCAL = re.compile(r"file:/*")


@attrs.frozen
class Directory:
    """A directory of files with the log that Spark's readers follow, ``_spark_metadata``."""

    path: str
    """As ``directory_path`` gives it."""
    store: str = ""
    """URI of the store that it is, for Chandy's own sink."""

    def __str__(self) -> str:
        return self.path


@attrs.frozen
class Topic:
    """A topic of a Kafka cluster."""

    servers: frozenset[str]
    """Where the cluster is: ``host:port``, some or all of its brokers."""
    name: str

    def __str__(self) -> str:
        return f"topic {self.name}"

    @staticmethod
    def servers_of(text: str) -> frozenset[str]:
        """Take a list of brokers apart, as Kafka's clients have it."""
        return frozenset(one.strip() for one in text.split(",") if one.strip())


OutputTarget = Directory | Topic


@attrs.frozen
class Output:
    """What one sink of a query writes."""

    place: OutputTarget
    sink: str | None = None
    """Uid of the transactional sink. None: Spark's own file sink, whose rows are visible as soon as a batch commits."""


def plain_path(uri: str) -> str:
    """Return a URI of a file or directory in the one way in which such places are compared.

    Args:
        uri: percent-encoded, as in Spark's logs.

    Returns:
        The absolute path, if it is local; else the URI without percent-encoding, with Hadoop's scheme for S3.
    """
    path = unquote(uri)
    if (local := _LOCAL.match(path)) is not None:
        path = f"/{path[local.end() :]}"
    return re.sub(r"^s3n?://", "s3a://", path).rstrip("/") or "/"


def directory_path(uri: str) -> str:
    """Return the URI of a directory as ``plain_path`` does, without symbolic links if it is local."""
    path = plain_path(uri)
    return os.path.realpath(path) if path.startswith("/") else path


def local_directory(path: Path) -> Directory:
    """Return the place that a directory of this machine is."""
    return Directory(directory_path(path.as_uri()))
