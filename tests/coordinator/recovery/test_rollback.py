"""The order of the steps back: each of them is taken, and none too early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chandy.coordinator.recovery.rollback import go_back
from chandy.coordinator.restore.restore_point import RestorePoint

POINT: Any = object()


class Recording:
    """Writes the steps down; ``fails_at`` names the one that fails."""

    def __init__(self, resumable: Mapping[str, str] | None = None, fails_at: str = "") -> None:
        self.taken: list[str] = []
        self.resumable = resumable or {}
        self.fails_at = fails_at

    def step(self, name: str) -> None:
        if name == self.fails_at:
            raise OSError(name)
        self.taken.append(name)

    def check_not_fenced(self) -> None:
        self.step("check_not_fenced")

    def stop_runs(self) -> None:
        self.step("stop_runs")

    def suspend_checkpoints(self) -> None:
        self.step("suspend_checkpoints")

    def await_manifests(self) -> None:
        self.step("await_manifests")

    def choose_restore_point(self) -> RestorePoint | None:
        self.step("choose_restore_point")
        return POINT  # type: ignore[no-any-return]

    def find_resumable(self, point: RestorePoint | None) -> Mapping[str, str]:
        self.step("find_resumable")
        assert point is POINT
        return self.resumable

    def forget_resumable(self) -> None:
        self.step("forget_resumable")

    def queries(self) -> list[str]:
        return ["q", "r"]

    def restore(self, query: str, point: RestorePoint | None, resumed: str | None) -> None:
        assert point is POINT
        self.step(f"restore {query} {resumed}")

    def release_runs(self) -> None:
        self.step("release_runs")

    def resume_checkpoints(self, point: RestorePoint | None) -> None:
        assert point is POINT
        self.step("resume_checkpoints")

    def start_runs(self) -> None:
        self.step("start_runs")

    def clean_up(self) -> None:
        self.step("clean_up")


BEFORE = ["check_not_fenced", "stop_runs", "suspend_checkpoints", "await_manifests", "choose_restore_point"]
AFTER = ["release_runs", "resume_checkpoints", "start_runs"]


def test_a_pipeline_goes_to_the_checkpoint_and_nobody_resumes_what_it_gives_up() -> None:
    steps = Recording({"q": "run", "r": "run"})
    go_back(steps, resume=False)
    restored = ["restore q None", "restore r None"]
    assert steps.taken == [*BEFORE, "forget_resumable", *restored, *AFTER, "clean_up"]


def test_a_pipeline_resumes_if_all_queries_can() -> None:
    steps = Recording({"q": "run 1", "r": "run 2"})
    go_back(steps, resume=True)
    restored = ["restore q run 1", "restore r run 2"]
    assert steps.taken == [*BEFORE, "find_resumable", *restored, *AFTER, "clean_up"]


def test_a_pipeline_that_cannot_resume_goes_to_the_checkpoint() -> None:
    steps = Recording()
    go_back(steps, resume=True)
    restored = ["restore q None", "restore r None"]
    assert steps.taken == [*BEFORE, "find_resumable", "forget_resumable", *restored, *AFTER, "clean_up"]


@pytest.mark.parametrize("step", [*BEFORE, "forget_resumable", "restore q None", *AFTER])
def test_nothing_is_done_after_a_step_that_fails(step: str) -> None:
    steps = Recording(fails_at=step)
    with pytest.raises(OSError, match=step):
        go_back(steps, resume=True)
    everything = Recording()
    go_back(everything, resume=True)
    assert steps.taken == everything.taken[: everything.taken.index(step)]
