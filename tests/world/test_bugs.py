"""Worlds find bugs that are put into the product."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ..effort import IS_FULL, sampled

FOUND_EARLY = [
    "the cut is chosen upstream first: a reader's cut is behind its writer's",
    "an epoch is closed after its job was submitted",
    "'begin batch' is answered without the fence proof",
    "there is no trigger record before the cut",
    "a job of the driver stores the progress after the newest batch, not after the cut",
    "a checkpoint is announced before its manifest is written",
    "a commit is noticed that has not happened",
    "leave_out_a_shard_of_an_order",
    "apply_a_batch_twice",
    "snapshot_a_shard_before_the_staged_batch",
    "build_on_whatever_was_stored_last",
    "announce_before_the_manifest_is_durable",
    "delete_a_successors_objects",
    "never_look_for_a_successor",
    "use_ids_again",
    "delete_what_others_need",
    "take_checkpoints_while_going_back",
    "a fenced driver takes places of checkpoints",
    "a deletion forgets the checkpoints that are kept",
    "a deletion forgets the checkpoints that a reader has pinned",
    "a deletion does not look for pins",
    "a deletion deletes objects before their manifests",
    "retention drops the checkpoint that the state grew from",
    "a snapshot lacks the batch that is staged, although it has committed",
    "an attempt at an earlier batch stages its changes",
    "a host writes a layer after readers have lost it",
    "a shard is handed over without the batch that is staged",
    "a snapshot is not acknowledged",
    "a manifest that a store creates late counts although its checkpoint is deleted",
    "runs go on while a pipeline goes back",
    "a way back leads to where this life began",
    "a way back does not wait for manifests that are being written",
    "hosts do not hear that runs are over",
    "hosts do not hear of the runs of an attempt that has failed",
    "the last query is not started after a way back",
    "nobody says that a pipeline has gone back",
    "a restart that has failed is forgotten",
    "a delay before a restart never ends",
]
"""What the first runs find. The ordinary run tries some of these. What they do not find, the tests of the module that
has the bug do."""
RUNS = 40
"""In so many runs a bug is found."""


@pytest.mark.parametrize("name", FOUND_EARLY if IS_FULL else sampled(FOUND_EARLY, 3))
def test_a_world_finds(name: str) -> None:
    # In a process of its own, in which the order of sets is that of the command line, too.
    done = subprocess.run(
        [sys.executable, "-m", "tests.world", "--bug", name, "--runs", str(RUNS), "--seed", "5000"],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
