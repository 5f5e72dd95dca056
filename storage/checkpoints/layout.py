"""The keys of all objects in a pipeline's storage and in a savepoint's folder, and how they are recognised.

Whatever is deleted is named by a record, or has a name of exactly a form that only this module makes: a prefix alone
says nothing, because ``shared/`` and ``staged/`` are words that other programs use, too.
"""

from __future__ import annotations

import re
from typing import Final, Generic, TypeVar, cast

import attrs

from .. import runtime
from ..errors import InvalidNameError
from ..ids import BatchId, CheckpointId
from ..keys import validate_name

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints/"
GENERATIONS = "generations/"
SHARED = "shared/"
STAGED = "staged/"
"""Rows that tasks have written for transactional sinks, until they are published."""
OUTPUTS = "outputs/"
"""Records of what was committed to targets that keep none themselves. They are kept for ever."""
PACK = ".pack"
PROBES = "probes/"
JOURNAL = "journal/"
PINS = "pins/"
"""Records of the checkpoints that readers of the pipeline's changes need."""
LOST = "lost/"
"""Records of the files that sources of queries have lost and still need."""
SHADOWS = "shadows/"
"""What the shadows of a pipeline write: to its leader, these are another program's objects. Each life of one keeps its
state in a folder of its own, which is never used again: if it takes the pipeline over, the pipeline's checkpoints name
what is there."""
VERDICTS = "verdicts/"
"""What the shadows of a pipeline have found, apart from all else that they write, so that it can be listed often."""
SAVEPOINTS = "savepoints"
"""Folder in a pipeline's storage with the savepoints that were given no other place."""
REPLICA = "replica.json"
"""Key of the record in which form a replica's pipeline writes its target."""
_REPLICA = ".replica."
CLAIM = "claim"
"""Key in a savepoint's folder of the record who writes it or wrote it."""

OWNER = "owner"
"""Key in a savepoint's folder of the record which pipeline has claimed it."""
CLAIMED = "claimed/"
_NUMBER: Final = re.compile(r"[1-9]\d*")


N = TypeVar("N", bound=int)


@attrs.frozen
class NumberedKey(Generic[N]):
    """The keys of one kind of record, each of one generation or checkpoint."""

    before: str
    after: str

    def __call__(self, number: N) -> str:
        """Return the key of the record of a generation or checkpoint."""
        return f"{self.before}{number}{self.after}"

    def number(self, key: str) -> N | None:
        """Return the generation or checkpoint that has a record of this kind with this key; None if none has."""
        number = key.removeprefix(self.before).removesuffix(self.after)
        is_own = _NUMBER.fullmatch(number) is not None and key == f"{self.before}{number}{self.after}"
        return cast("N", int(number)) if is_own else None


claimed_key = NumberedKey[int](CLAIMED, ".json")
"""The record which savepoint a generation was restored from and claimed."""
generation_key = NumberedKey[int](GENERATIONS, ".json")
"""The record that fences all generations below this one."""
start_key = NumberedKey[int](GENERATIONS, ".start.json")
"""The start record of a generation: what it found and which ids it may use."""
driver_key = NumberedKey[int](GENERATIONS, ".driver.json")
"""The record of the driver of a generation, which is there as long as its queries may write."""
lease_key = NumberedKey[int](GENERATIONS, ".lease.json")
"""The lease that the driver of a generation renews, so that a standby sees that it lives."""
asked_key = NumberedKey[int](GENERATIONS, ".asked.json")
"""The record in which a shadow asks the driver of a generation for the pipeline."""
offer_key = NumberedKey[int](GENERATIONS, ".offer.json")
"""The record in which the driver of a generation offers a shadow the pipeline."""
journal_key = NumberedKey[int](JOURNAL, ".jsonl")
"""What a generation has written down of its failures, for people to read."""
trends_key = NumberedKey[int](JOURNAL, ".trends.jsonl")
"""What a generation has measured in the last hour and day, for people to see."""
manifest_key = NumberedKey[CheckpointId](CHECKPOINTS, f"/{MANIFEST}")
"""A checkpoint's manifest."""
trigger_key = NumberedKey[CheckpointId](CHECKPOINTS, "/trigger")
"""The record that this id was used, with the checkpoint's kind. It is created before anything else."""
dropped_key = NumberedKey[CheckpointId](CHECKPOINTS, "/dropped")
"""The record that a checkpoint is about to be deleted, so that no reader begins to need it."""
gone_key = NumberedKey[CheckpointId](CHECKPOINTS, "/gone")
"""The record that a checkpoint is deleted, even if a store creates its manifest once more, late."""
savepoint_key = NumberedKey[CheckpointId](CHECKPOINTS, "/savepoint")
"""The record that this id went to a savepoint. Its content is the savepoint's URI."""


def verdict_key(shadow: str) -> str:
    """Key of what a shadow has found in all of its lives."""
    return f"{VERDICTS}{shadow}.json"


def verdict_of(key: str) -> str | None:
    """Return the shadow whose verdict has this key; None if it is another object."""
    match = _VERDICT.fullmatch(key)
    return match[1] if match else None


def difference_key(shadow: str, name: str) -> str:
    """Key of the file with what differs in one comparison."""
    return f"{SHADOWS}{shadow}/differences/{name}.parquet"


def switch_key(shadow: str) -> str:
    """Key of the order that a shadow takes its pipeline over."""
    return f"{SHADOWS}{shadow}/switch.json"


def switch_answer_key(shadow: str) -> str:
    """Key of what has become of the order."""
    return f"{SHADOWS}{shadow}/switch.answer.json"


def shadow_folder(life: str) -> str:
    """Prefix of the keys of what one life of a shadow keeps. Each is laid out as a pipeline's own storage."""
    return f"{SHADOWS}{life}/"


def life_of_shadow(key: str) -> str | None:
    """Return the life of a shadow, or the name of one, in whose folder an object is; None if it is in none."""
    place, _, rest = key.partition("/")
    life, found, _ = rest.partition("/")
    return life if found and f"{place}/" == SHADOWS else None


def lost_key(query: str, source: int) -> str:
    """Key of the record which files a source of a query has lost, by the number of the source."""
    return f"{LOST}{query}/{source}.json"


class ReplicaPipelineName(str):
    """The name of the pipeline that writes a replica. Only ``replica_pipeline`` makes one."""

    __slots__ = ()


def replica_pipeline(pipeline: str, replica: str) -> ReplicaPipelineName:
    """Return the name of the pipeline that writes a replica of another pipeline's state."""
    return ReplicaPipelineName(f"{pipeline}{_REPLICA}{replica}")


def replicated_by(name: str) -> str | None:
    """Return the pipeline whose state the pipeline ``name`` replicates; None if it is no replica's."""
    pipeline, found, _ = name.partition(_REPLICA)
    return pipeline if found else None


def validate_pipeline(name: str) -> str:
    """Return the name of a pipeline if it can be used, and is that of a replica's only if a replica has it.

    Raises:
        InvalidNameError: it cannot.
    """
    validate_name("pipeline", name)
    # Also what would end in the middle of the mark.
    if _REPLICA in f"{name}." and not isinstance(name, ReplicaPipelineName):
        raise InvalidNameError(
            "this pipeline name cannot be used",
            f"a name without {_REPLICA!r}, which stands before the name of a replica",
            repr(name),
            "choose another name",
        )
    # PySpark 4.1 takes no subclass of a text.
    return str(name)


def pin_key(reader: str, checkpoint: CheckpointId) -> str:
    """Key of the record that a reader needs a checkpoint."""
    return f"{PINS}{reader}/{checkpoint}.json"


def pin_of(key: str) -> tuple[str, int] | None:
    """Return the reader and the checkpoint of the record with this key; None if it is another object."""
    match = _PIN.fullmatch(key)
    return (match[1], int(match[2])) if match else None


def pack_key(checkpoint: CheckpointId, writer: str) -> str:
    """Key of the object into which ``writer`` packs its small files of a checkpoint."""
    return f"{CHECKPOINTS}{checkpoint}/{writer}{PACK}"


def new_pack_key(key: str) -> str:
    """Return the key of a pack with a random part: two lives of a coordinator may use the same id."""
    return f"{key.removesuffix(PACK)}-{runtime.token()[:12]}{PACK}"


def shared_key(sha256: str) -> str:
    """Key of an immutable file that checkpoints may share."""
    return f"{SHARED}{sha256[:2]}/{sha256}.sst"


def staged_folder(query: str) -> str:
    """Prefix of the keys of the rows that a query has staged."""
    return f"{STAGED}{query}/"


def staged_name(batch: BatchId, partition: int, number: int, suffix: str) -> str:
    """Return a new name for a file that a task has staged.

    Another attempt at the task may run at the same time, so that no two may share a name.

    Args:
        batch: the batch's number.
        partition: the task's number.
        number: of the file among those of the task.
        suffix: what the name ends with: letters, digits and dots.
    """
    return f"{batch}-{partition}-{number}-{runtime.token()}{suffix}"


def probe_key() -> str:
    """Key of an object that tries a store out, different in each call."""
    return f"{PROBES}{runtime.token()}"


def is_shared(key: str) -> bool:
    """Whether the object is one file, named by its SHA-256. Otherwise it is a pack."""
    return _SHARED.match(key) is not None


def generation_of(key: str) -> int | None:
    """Return the generation that has a record of any kind with this key; None if it is another object."""
    match = _GENERATION.fullmatch(key)
    return int(match[1]) if match else None


def checkpoint_of(key: str) -> CheckpointId | None:
    """Return the checkpoint whose folder has this key; None if it is another object."""
    match = _CHECKPOINT.match(key)
    return CheckpointId(int(match[1])) if match else None


def is_file(key: str) -> bool:
    """Whether the key has a form of the files that a checkpoint or a savepoint consists of, beside its records."""
    return _FILE.fullmatch(key) is not None


def is_probe(key: str) -> bool:
    """Whether an object tried a store out."""
    return _PROBE.fullmatch(key) is not None


def is_of_pipeline(key: str) -> bool:
    """Whether an object is a record that stands in a pipeline's own storage alone."""
    return _OF_PIPELINE.fullmatch(key) is not None


_FILE = re.compile(
    rf"{SHARED}([0-9a-f]{{2}})/\1[0-9a-f]{{62}}\.sst"
    rf"|{CHECKPOINTS}[1-9]\d*/[^/]+-[0-9a-f]{{12}}{re.escape(PACK)}"
    rf"|{STAGED}[^/]+/\d+-\d+-(?:\d+-)?[0-9a-f]{{32}}[A-Za-z0-9.]*"
)
_SHARED = re.compile(rf"(?:{SHADOWS}[^/]+/)?{SHARED}")
_PIN = re.compile(rf"{PINS}([^/]+)/([1-9]\d*)\.json")
_VERDICT = re.compile(rf"{VERDICTS}([^/]+)\.json")
_PROBE = re.compile(rf"{PROBES}[0-9a-f]{{32}}")
_GENERATION = re.compile(rf"{GENERATIONS}([1-9]\d*)(?:\.[a-z]+)?\.json")
_CHECKPOINT = re.compile(rf"{CHECKPOINTS}([1-9]\d*)/")
_OF_PIPELINE = re.compile(
    rf"{GENERATIONS}[1-9]\d*(?:\.[a-z]+)?\.json|{CHECKPOINTS}[1-9]\d*/(?:{re.escape(MANIFEST)}|trigger|savepoint|dropped|gone)"
)
