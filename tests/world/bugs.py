"""Bugs that are put into the product's text, to see that worlds find them."""

from __future__ import annotations

from typing import Final

import pytest

from chandy.coordinator.execution import checkpoint_jobs, commit
from chandy.coordinator.execution.checkpoint_jobs import CheckpointJobs
from chandy.coordinator.execution.connected_hosts import ConnectedHosts
from chandy.coordinator.execution.dispatch import Dispatcher
from chandy.coordinator.protocol.retained import RetainedCheckpoints
from chandy.storage.checkpoints import catalog, pins

from .host_bugs import HOST_BUGS
from .protocol_bugs import PROTOCOL_BUGS
from .recovery_bugs import RECOVERY_BUGS
from .seeded import SeededBug
from .shell_bugs import SHELL_BUGS

BUGS: Final = (
    # --- those that no test found before
    SeededBug(
        "the cut is chosen upstream first: a reader's cut is behind its writer's",
        0,
        CheckpointJobs,
        "choose_cut",
        "    for query in choose.queries:\n        begun",
        "    for query in reversed(choose.queries):\n        begun",
    ),
    SeededBug(
        "an epoch is closed after its job was submitted",
        0,
        Dispatcher,
        "hand_on",
        """            self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)
            yield None
            submit(JobLane.IO, instruction.root, Job(jobs.store_progress, instruction))""",
        """            submit(JobLane.IO, instruction.root, Job(jobs.store_progress, instruction))
            yield None
            self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)""",
    ),
    SeededBug(
        "'begin batch' is answered without the fence proof",
        0,
        ConnectedHosts,
        "ask_once",
        "    self._proof.check()\n",
        "",
    ),
    SeededBug(
        "a manifest is written without the look for doomed objects",
        0,
        CheckpointJobs,
        "finalize",
        "if doomed := self._protocol.doomed(manifest):",
        "if (doomed := self._protocol.doomed(manifest)) and False:",
    ),
    SeededBug(
        "no QueryStopped after planning",
        0,
        CheckpointJobs,
        "choose_cut",
        "self._protocol.handle(on.QueryStopped(query, batch))",
        "pass",
    ),
    SeededBug(
        "acknowledgements of dismissed hosts count",
        0,
        ConnectedHosts,
        "ack",
        "    self._check_not_dismissed(ack.host)\n",
        "",
    ),
    SeededBug(
        "there is no trigger record before the cut",
        0,
        CheckpointJobs,
        "_take_place",
        "    self._store.create(trigger_key(choose.checkpoint), note.encode())\n",
        "",
    ),
    # --- jobs
    SeededBug(
        "a job of the driver stores the progress after the newest batch, not after the cut",
        0,
        CheckpointJobs,
        "store_progress",
        "self._progress.hold(order.query, order.cut)",
        "self._progress.hold(order.query, self._progress.begun(order.query) - 1)",
    ),
    SeededBug(
        "a commit is not confirmed",
        0,
        commit,
        "commit_steps",
        "yield from _until_known(lambda: catalog.confirm(manifest), StoreFailedError, is_closed)",
        "pass",
    ),
    SeededBug(
        "nobody looks for a successor before a savepoint's manifest counts",
        0,
        commit,
        "commit_steps",
        "        yield None\n        catalog.check_not_fenced(manifest.generation)\n    else:",
        "        yield None\n    else:",
    ),
    SeededBug(
        "a manifest of which nobody knows is taken for written",
        0,
        commit,
        "_until_known",
        "            error, unknown = failed, StoreFailedError\n",
        "            error, unknown = failed, StoreFailedError\n            return True\n",
    ),
    SeededBug(
        "a manifest of which nobody knows is taken for not written",
        0,
        CheckpointJobs,
        "finalize",
        "is_known=not isinstance(error, OutcomeUnknownError)",
        "is_known=True",
    ),
    SeededBug(
        "a failure of the second look at a manifest is taken for that of the first",
        0,
        commit,
        "_until_known",
        "error, unknown = failed, StoreFailedError",
        "error = failed",
    ),
    SeededBug(
        "a checkpoint is announced before its manifest is written",
        0,
        CheckpointJobs,
        "finalize",
        "        if doomed := self._protocol.doomed(manifest):",
        "        self._tell_of(manifest, order.root)\n        if doomed := self._protocol.doomed(manifest):",
    ),
    SeededBug(
        "a commit is noticed that has not happened",
        0,
        CheckpointJobs,
        "notice_commits",
        "if self._is_committed(query, cut):",
        "if self._is_committed(query, cut - 1):",
    ),
    SeededBug(
        "a job copies the shards of a savepoint, and leaves the first one out",
        0,
        CheckpointJobs,
        "copy_shards",
        "for number, (shard, _) in enumerate(order.sources)",
        "for number, (shard, _) in enumerate(order.sources[1:])",
    ),
    SeededBug(
        "a fenced driver takes places of checkpoints",
        0,
        CheckpointJobs,
        "_take_place",
        "    self._watch.check_now()\n",
        "",
    ),
    SeededBug(
        "the end of a deletion is not told if it fails",
        0,
        CheckpointJobs,
        "discard",
        "    finally:\n",
        "    else:\n",
    ),
    # --- deletions
    SeededBug(
        "a deletion forgets the checkpoints that are kept",
        0,
        checkpoint_jobs,
        "discard",
        "deletable(gone, [*needed(), *remaining, *found])",
        "deletable(gone, [*remaining, *found])",
    ),
    SeededBug(
        "a deletion forgets the checkpoints that a reader has pinned",
        0,
        checkpoint_jobs,
        "discard",
        "deletable(gone, [*needed(), *remaining, *found])",
        "deletable(gone, [*needed(), *found])",
    ),
    SeededBug(
        "a deletion takes a manifest for gone that the store has refused to delete",
        0,
        checkpoint_jobs,
        "discard",
        "if one.id in given_up and manifest_key(one.id) not in failed]",
        "if one.id in given_up]",
    ),
    SeededBug(
        "a manifest that a store creates late counts although its checkpoint is deleted",
        0,
        checkpoint_jobs,
        "discard",
        "if id in given_up and (id in repeated or",
        "if id in given_up and (False or",
    ),
    SeededBug(
        "nobody says that the store was asked for a manifest more than once",
        0,
        commit,
        "_until_known",
        "            return again\n",
        "            return False\n",
    ),
    SeededBug(
        "a list has what is gone",
        0,
        catalog,
        "_ids",
        " and gone_key(id) not in there",
        "",
    ),
    SeededBug(
        "a deletion does not look for pins",
        0,
        pins,
        "pinned",
        "for held in pins(store).values() for id in held",
        "for held in [] for id in held",
    ),
    SeededBug(
        "a deletion forgets what others are deleting",
        0,
        RetainedCheckpoints,
        "there_besides",
        "return (*self._kept(), *others)",
        "return self._kept()",
    ),
    SeededBug(
        "nobody knows what is being deleted",
        0,
        RetainedCheckpoints,
        "being_deleted",
        "if not self._deleting:",
        "if True:",
    ),
    SeededBug(
        "what was dropped and is still there is not dropped again",
        0,
        RetainedCheckpoints,
        "deleted",
        "sorted((*self.manifests, *remaining), key=lambda one: one.id)",
        "self.manifests",
    ),
    SeededBug(
        "a checkpoint of which nobody knows whether it is written is deleted",
        0,
        RetainedCheckpoints,
        "leave_undecided",
        "self._undecided[manifest.id] = manifest",
        "pass",
    ),
    SeededBug(
        "retention drops the checkpoint that the state grew from",
        0,
        RetainedCheckpoints,
        "drop",
        "[*bases, *([] if self.base is None else [self.base])]",
        "[]",
    ),
    SeededBug(
        "an aborted checkpoint is deleted with what others have of it",
        0,
        checkpoint_jobs,
        "discard_aborted",
        """.difference(
        *(manifest.keys() for manifest in others)
    )""",
        "",
    ),
    SeededBug(
        "an aborted checkpoint is deleted by a driver that has a successor",
        0,
        checkpoint_jobs,
        "discard_aborted",
        """    proof.check_now()
    if own in found and catalog.read(checkpoint).generation != proof.generation:
        return frozenset()
""",
        "",
    ),
    SeededBug(
        "a deletion deletes objects before their manifests",
        0,
        checkpoint_jobs,
        "discard",
        "    failed = {**_delete(store, [manifest_key(id) for id in by_id if id in given_up])}\n",
        """    others = [*needed(), *(yield from _others(store, {*by_id, *(one.id for one in needed())}))]
    _delete(store, sorted(deletable([one for one in by_id.values() if one.id in given_up], others)))
    yield
    failed = {**_delete(store, [manifest_key(id) for id in by_id if id in given_up])}
""",
    ),
)
"""All of them."""


def put_in(name: str, patch: pytest.MonkeyPatch) -> None:
    """Put a bug into the product, by its name or the name of its function."""
    found = {bug.name: bug.put_in for bug in (*BUGS, *HOST_BUGS, *RECOVERY_BUGS, *SHELL_BUGS)} | {
        one.__name__: one for one in PROTOCOL_BUGS
    }
    found[name](patch)
