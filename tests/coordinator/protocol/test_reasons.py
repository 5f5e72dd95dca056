"""Why there is no checkpoint."""

from __future__ import annotations

import pickle

import cattrs
import pytest

from chandy.coordinator.errors import ChandyError, CheckpointError
from chandy.coordinator.protocol.reasons import Reason


# A host declines, too, if it could not upload a snapshot that it has taken, so that has no reason of its own.
def test_policy_and_life_cycle_are_not_counted_but_failures_of_the_checkpoint_are() -> None:
    assert {reason for reason in Reason if reason.counted} == {
        Reason.TRIGGER_CHECKPOINT_FAILURE,
        Reason.IO_EXCEPTION,
        Reason.DECLINED,
        Reason.EXPIRED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
    assert {reason for reason in Reason if not reason.counted} == {
        Reason.COORDINATOR_SHUTDOWN,
        Reason.COORDINATOR_SUSPENDED,
        Reason.TOO_MANY_REQUESTS,
        Reason.NOT_ALL_REQUIRED_TASKS_RUNNING,
        Reason.SUBSUMED,
        Reason.OBJECTS_DROPPED,
        Reason.JOB_FAILOVER,
        Reason.FENCED,
    }


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_its_name_wherever_it_is_written(reason: Reason) -> None:
    assert str(reason) == reason.value == reason.name
    assert cattrs.structure(cattrs.unstructure(reason), Reason) is reason
    assert pickle.loads(pickle.dumps(reason)) is reason


@pytest.mark.parametrize("reason", Reason)
def test_an_error_says_which_checkpoint_ended_why_and_what_it_means(reason: Reason) -> None:
    error = CheckpointError(7, reason, "disk full")
    assert isinstance(error, ChandyError)
    assert (error.id, error.reason, error.detail) == (7, reason, "disk full")
    assert all(part in str(error) for part in ("checkpoint 7", reason.name, reason.meaning, "disk full"))


def test_an_error_of_a_request_that_never_had_an_id_names_none() -> None:
    error = CheckpointError(None, Reason.TOO_MANY_REQUESTS)
    assert "None" not in str(error)
    assert str(error).endswith(Reason.TOO_MANY_REQUESTS.meaning)


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(CheckpointError(7, Reason.EXPIRED, "late")))
    assert (error.id, error.reason, error.detail) == (7, Reason.EXPIRED, "late")
