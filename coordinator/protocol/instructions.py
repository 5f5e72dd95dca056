"""What the checkpoint protocol wants done: values that it returns, for others to carry out."""

from __future__ import annotations

import attrs

from ...state.rpc.messages import Order, RestoreSource, ShardId
from ...storage.manifest import Handle, Manifest
from ..errors import CheckpointError
from .requests import Request


@attrs.frozen
class ChooseCut:
    """Look at each query in this order, and say by ``Protocol.cut`` which batch was its newest."""

    checkpoint: int
    queries: tuple[str, ...]
    root: str
    is_savepoint: bool


@attrs.frozen
class Send:
    """Send an order to a state host."""

    host: str
    order: Order


@attrs.frozen
class StoreProgress:
    """Store the files of a query's progress at the cut, then say ``Protocol.progress_stored``."""

    checkpoint: int
    query: str
    cut: int
    root: str
    base: Handle | None


@attrs.frozen
class CopyShards:
    """Copy the files of shards that nobody has touched since their origin, then ``Protocol.shards_copied``."""

    checkpoint: int
    query: str
    sources: tuple[tuple[ShardId, RestoreSource], ...]
    root: str


@attrs.frozen
class Finalize:
    """All have acknowledged: write the manifest that ``Protocol.finalize`` gives."""

    checkpoint: int


@attrs.frozen
class Resolve:
    """A request has got its checkpoint."""

    request: Request
    manifest: Manifest
    root: str


@attrs.frozen
class Reject:
    """A request has failed."""

    request: Request
    error: CheckpointError


@attrs.frozen
class Discard:
    """Delete checkpoints that retention has dropped, then say ``Protocol.discarded``."""

    dropped: tuple[Manifest, ...]
    kept: tuple[Manifest, ...]


@attrs.frozen
class DiscardAborted:
    """Delete what was written for a checkpoint alone that will never complete."""

    checkpoint: int
    root: str
    is_savepoint: bool


@attrs.frozen
class FailPipeline:
    """More checkpoints in a row have failed than are tolerable."""

    error: CheckpointError


Instruction = (
    ChooseCut
    | Send
    | StoreProgress
    | CopyShards
    | Finalize
    | Resolve
    | Reject
    | Discard
    | DiscardAborted
    | FailPipeline
)
