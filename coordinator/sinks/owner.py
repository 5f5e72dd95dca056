"""The mark in an output directory that says whose output it is.

A log with batches is no proof that this pipeline wrote them: a plain Spark query leaves the same. So the mark is
written before the first batch, once the output was seen to be empty. Its name begins with an underscore, so that
readers of the directory pass over it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from ...storage.backends.local import LocalStore
from ...storage.checkpoints.proof import FenceProof
from ...storage.codec import from_json, to_json
from ...storage.errors import CodecError, ObjectExistsError
from ...storage.logs import logger
from ...storage.uri import is_same_store
from ..errors import SinkTakenError

log = logger(__name__)

MARK: Final = "_chandy_owner.json"
"""Name of the file in the output directory."""


@attrs.frozen
class SinkOwner:
    """A pipeline, as the writer of outputs."""

    store: str
    """URI of the pipeline's own store, which tells pipelines of one name apart."""
    pipeline: str


@attrs.frozen
class Mark:
    """The pipeline and query whose output a directory has."""

    store: str
    pipeline: str
    query: str

    def is_same(self, other: Mark) -> bool:
        """Return whether it is the mark of one query, whose store may be reached in another way."""
        same = attrs.evolve(other, store=self.store) == self
        return same and is_same_store(self.store, other.store)

    def __str__(self) -> str:
        return f"query {self.query!r} of pipeline {self.pipeline!r} (checkpoints in {self.store})"


def mark_of(output: Path) -> Mark | None:
    """Return whose output a directory has; None if nobody has marked it.

    Raises:
        SinkTakenError: there is a mark that cannot be read.
    """
    try:
        return from_json(Mark, (output / MARK).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CodecError as error:
        raise SinkTakenError(
            f"the output {output} cannot be used",
            f"a file {MARK} that says whose output it is",
            f"one that cannot be read: {error.reason}",
            f"choose another path, or delete {MARK} if you are sure that the output is this query's",
        ) from None


def check_mark(output: Path, mine: Mark, passes_on: Callable[[Mark], bool] = lambda _: False) -> bool:
    """Return whether a directory has a query's own mark already.

    Args:
        output: the directory.
        mine: the query's mark.
        passes_on: whether the query may go on with what the one of another mark has written.

    Raises:
        SinkTakenError: it has that of another query.
    """
    found = mark_of(output)
    if found is None or found.is_same(mine):
        return found is not None
    if passes_on(found):
        log.warning("the output passes on to another query", output=str(output), of=str(found), to=str(mine))
        return False
    raise SinkTakenError(
        f"query {mine.query!r} cannot write into {output}",
        f"an output of its own, for pipeline {mine.pipeline!r} with checkpoints in {mine.store}",
        f"that of {found}",
        f"choose another path; or, if that query will never run again and its output is to be this one's, delete "
        f"{output / MARK}",
    )


def pass_on(output: Path, mine: Mark, proof: FenceProof) -> None:
    """Mark a directory as a query's output, and replace the mark of another query.

    Raises:
        FencedError: it is a successor's.
    """
    proof.check()
    LocalStore(output).write(MARK, to_json(mine))


def put_mark(output: Path, mine: Mark, proof: FenceProof) -> None:
    """Mark a directory as a query's output; it is made if it is missing.

    Raises:
        FencedError: it is a successor's.
        SinkTakenError: another query has marked it.
    """
    if check_mark(output, mine):
        return
    proof.check()
    try:
        LocalStore(output).create(MARK, to_json(mine))
    except ObjectExistsError:
        check_mark(output, mine)
