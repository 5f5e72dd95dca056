"""Whatever users ask and whatever happens: each request ends once, and none hangs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import PipelineFailedError
from chandy.coordinator.protocol.acts import ENDS, Act, ActKind, Acts, Ending
from chandy.coordinator.protocol.errors import NotCarriedOutError
from chandy.coordinator.protocol.life import Life, ToldLife
from chandy.coordinator.protocol.user_requests import RequestPhase
from chandy.storage.errors import FencedError

from ...effort import always_kept

FENCED = FencedError("memory://", 1, 2, "another driver")
FAILED = PipelineFailedError("it cannot go on")
LIVES = {
    Ending.FENCE: Life().started().failing(FENCED),
    Ending.FAILURE: Life().started().failing(FAILED),
    None: Life().started(),
}
STEPS = st.one_of(
    st.tuples(st.sampled_from(list(ActKind)), st.sampled_from(["r", "s"])),
    st.tuples(st.just("ended"), st.integers(0, 5), st.sampled_from([None, FENCED, FAILED])),
    st.tuples(st.just("lives"), st.sampled_from(list(LIVES))),
)


class Pipeline:
    """Acts, what was asked, and what must hold."""

    def __init__(self) -> None:
        self.told = ToldLife(LIVES[None])
        self.acts = Acts(self.told)
        self.asked: list[Act] = []
        self.has_stopped = False

    @property
    def at_it(self) -> list[Act]:
        return [act for act in self.asked if act.is_carried_out and act in self.acts._open]

    def ask(self, kind: ActKind, name: str) -> Act:
        before = self.at_it
        act = self.acts.ask(kind, name)
        self.asked.append(act)
        if self.has_stopped and Ending.STOP in ENDS[kind]:
            assert act.request.phase is RequestPhase.REFUSED, "nothing is begun after a stop"
        same = [one for one in before if one.subject == act.subject and kind is not ActKind.STOP]
        assert not (same and act.is_carried_out), "two are about the same at the same time"
        return act

    def end(self, act: Act, error: Exception | None) -> None:
        was = act.request.phase
        self.acts.ended(act.number, error)
        assert act.request.is_over
        assert was is RequestPhase.UNDER_WAY or act.request.phase is was, "an end is for good"
        self.has_stopped |= act.kind is ActKind.STOP and error is None

    def live(self, ending: Ending | None) -> None:
        if not self.told.life.is_over:
            self.told.life = LIVES[ending]
            self.acts.lives(self.told.life)

    def look(self) -> None:
        stops = [act for act in self.at_it if act.kind is ActKind.STOP]
        begun_since = [act for act in self.at_it if stops and act.number < stops[0].number]
        assert len(stops) <= 1 and not begun_since, "a stop begins once nothing else is carried out"
        is_stopping = any(act.kind is ActKind.STOP and not act.request.is_over for act in self.asked)
        for act in self.asked:
            if is_stopping and Ending.STOP in ENDS[act.kind]:
                assert act.request.is_over, "whoever has asked does not wait for what a stop ends"
            if act.request.phase is RequestPhase.ADMITTED:
                assert act.kind is ActKind.STOP and self.at_it, "only a stop waits, and for something"


@always_kept(100, 30)
@given(st.lists(STEPS, max_size=30))
def test_each_request_ends_once_and_none_hangs(steps: list[tuple[object, ...]]) -> None:
    pipeline = Pipeline()
    for step in steps:
        match step:
            case (ActKind() as kind, str(name)):
                pipeline.ask(kind, name)
            case ("ended", int(which), error) if pipeline.at_it:
                assert error is None or isinstance(error, Exception)
                pipeline.end(pipeline.at_it[which % len(pipeline.at_it)], error)
            case ("lives", ending):
                pipeline.live(ending)  # type: ignore[arg-type]
        pipeline.look()
    while pipeline.at_it:
        pipeline.end(pipeline.at_it[0], None)
        pipeline.look()
    assert all(act.request.is_over for act in pipeline.asked)


@pytest.mark.parametrize("kind", list(ActKind))
@pytest.mark.parametrize("ending", list(Ending))
def test_what_ends_a_request_says_so(kind: ActKind, ending: Ending) -> None:
    pipeline = Pipeline()
    act = pipeline.ask(kind, "r")
    pipeline.ask(ActKind.STOP, "p") if ending is Ending.STOP else pipeline.live(ending)
    ends = ENDS[kind].get(ending)
    assert act.request.phase is (ends or RequestPhase.UNDER_WAY)
    asked = [act] * (ends is not None) + [pipeline.ask(kind, "another")] * (ending in ENDS[kind])
    for one in asked:
        with pytest.raises(FencedError if ending is Ending.FENCE else NotCarriedOutError):
            one.request.check()
