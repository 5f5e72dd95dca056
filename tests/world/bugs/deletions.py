"""Bugs in what deletes."""

from __future__ import annotations

from typing import Final

from .bug import tests, text

DELETIONS: Final = (
    text(
        "a deletion forgets the checkpoints that are kept",
        "coordinator.execution.checkpoint_jobs:discard",
        "deletable(gone, [*needed(), *remaining, *found])",
        "deletable(gone, [*remaining, *found])",
    ),
    text(
        "a deletion forgets the checkpoints that a reader has pinned",
        "coordinator.execution.checkpoint_jobs:discard",
        "deletable(gone, [*needed(), *remaining, *found])",
        "deletable(gone, [*needed(), *found])",
    ),
    text(
        "a deletion takes a manifest for gone that the store has refused to delete",
        "coordinator.execution.checkpoint_jobs:discard",
        "if one.id in given_up and manifest_key(one.id) not in failed]",
        "if one.id in given_up]",
        by=tests("tests/coordinator/protocol/test_deletions.py"),
    ),
    text(
        "a manifest that a store creates late counts although its checkpoint is deleted",
        "coordinator.execution.checkpoint_jobs:discard",
        "if id in given_up and (id in repeated or",
        "if id in given_up and (False or",
        by=tests("tests/storage/checkpoints/test_collect.py"),
    ),
    text(
        "nobody says that the store was asked for a manifest more than once",
        "coordinator.execution.commit:_until_known",
        "            return again\n",
        "            return False\n",
        by=tests("tests/coordinator/execution/test_commit.py"),
    ),
    text(
        "a list has what is gone",
        "storage.checkpoints.catalog:_ids",
        " and gone_key(id) not in there",
        "",
        by=tests("tests/storage/checkpoints/test_collect.py"),
    ),
    text(
        "a deletion does not look for pins",
        "storage.checkpoints.pins:pinned",
        "for held in pins(store).values() for id in held",
        "for held in [] for id in held",
    ),
    text(
        "nobody knows what is being deleted",
        "coordinator.protocol.retained:RetainedCheckpoints.being_deleted",
        "if not self._deleting:",
        "if True:",
        by=tests("tests/coordinator/protocol/test_retained.py"),
    ),
    text(
        "what was dropped and is still there is not dropped again",
        "coordinator.protocol.retained:RetainedCheckpoints.deleted",
        "sorted((*self.manifests, *remaining), key=lambda one: one.id)",
        "self.manifests",
        by=tests("tests/coordinator/protocol/test_retained.py"),
    ),
    text(
        "a checkpoint of which nobody knows whether it is written is deleted",
        "coordinator.protocol.retained:RetainedCheckpoints.leave_undecided",
        "self._undecided[manifest.id] = manifest",
        "pass",
        by=tests("tests/coordinator/protocol/test_retained.py"),
    ),
    text(
        "retention drops the checkpoint that the state grew from",
        "coordinator.protocol.retained:RetainedCheckpoints.drop",
        "[*bases, *([] if self.base is None else [self.base])]",
        "[]",
        by=tests("tests/coordinator/protocol/test_retained.py"),
    ),
    text(
        "an aborted checkpoint is deleted with what others have of it",
        "coordinator.execution.checkpoint_jobs:discard_aborted",
        """.difference(
        *(manifest.keys() for manifest in others)
    )""",
        "",
        by=tests("tests/storage/checkpoints/test_collect.py"),
    ),
    text(
        "an aborted checkpoint is deleted by a driver that has a successor",
        "coordinator.execution.checkpoint_jobs:discard_aborted",
        """    proof.check_now()
    if own in found and catalog.read(checkpoint).generation != proof.generation:
        return frozenset()
""",
        "",
        by=tests("tests/storage/checkpoints/test_collect.py"),
    ),
    text(
        "a deletion deletes objects before their manifests",
        "coordinator.execution.checkpoint_jobs:discard",
        "    failed = {**_delete(store, [manifest_key(id) for id in by_id if id in given_up])}\n",
        """    others = [*needed(), *(yield from _others(store, {*by_id, *(one.id for one in needed())}))]
    _delete(store, sorted(deletable([one for one in by_id.values() if one.id in given_up], others)))
    yield
    failed = {**_delete(store, [manifest_key(id) for id in by_id if id in given_up])}
""",
        by=tests("tests/coordinator/protocol/test_deletions.py"),
    ),
)
