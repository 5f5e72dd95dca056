"""Whatever users ask and whatever happens: each request ends once, and none hangs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chandy.coordinator.errors import PipelineFailedError
from chandy.coordinator.protocol.acts import ENDS, Act, ActKind, Acts, Ending
from chandy.coordinator.protocol.errors import NotCarriedOutError, PhaseError
from chandy.coordinator.protocol.life import Life
from chandy.coordinator.protocol.user_requests import RequestPhase
from chandy.storage.errors import FencedError

from ...effort import always_kept, sampled, until_found
from ...mutation import mutate

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


class ActingPipeline:
    """Acts, what was asked, and what must hold."""

    def __init__(self) -> None:
        self.acts = Acts()
        self.asked: list[Act] = []
        self.has_stopped = False

    @property
    def at_it(self) -> list[Act]:
        return [act for act in self.asked if act.is_carried_out and act in self.acts._open]

    @property
    def ended(self) -> set[Ending]:
        """What has happened to the pipeline."""
        is_stopped = self.has_stopped or any(
            act.kind is ActKind.STOP and not act.request.is_over for act in self.asked
        )
        found = {ending for ending, life in LIVES.items() if ending and life == self.acts.life}
        return found | ({Ending.STOP} if is_stopped else set())

    def ask(self, kind: ActKind, name: str) -> Act:
        before, ended = self.at_it, self.ended
        act = self.acts.ask(kind, name)
        self.asked.append(act)
        same = kind is not ActKind.STOP and any(one.subject == act.subject for one in before)
        assert (act.request.phase is RequestPhase.REFUSED) is (same or bool(ended & ENDS[kind].keys()))
        return act

    def end(self, act: Act, error: Exception | None) -> None:
        was = act.request.phase
        self.acts.ended(act.number, error)
        assert act.request.is_over and act not in self.at_it
        assert was is RequestPhase.UNDER_WAY or act.request.phase is was, "an end is for good"
        self.has_stopped |= act.kind is ActKind.STOP and error is None

    def live(self, ending: Ending | None) -> None:
        if not self.acts.life.is_over:
            self.acts.lives(LIVES[ending])

    def look(self) -> None:
        stops = [act for act in self.at_it if act.kind is ActKind.STOP]
        begun_since = [act for act in self.at_it if stops and act.number < stops[0].number]
        assert len(stops) <= 1 and not begun_since, "a stop begins once nothing else is carried out"
        for act in self.asked:
            if any(ENDS[act.kind].get(ending) for ending in self.ended):
                assert act.request.is_over, "whoever has asked does not wait for what cannot come"
            if act.request.phase is RequestPhase.ADMITTED:
                assert act.kind is ActKind.STOP and self.at_it, "only a stop waits, and for something"


def all_hold(effort: settings) -> None:
    """Try random orders of requests, ends and what happens to the pipeline."""

    @effort
    @given(st.lists(STEPS, max_size=30))
    def walk(steps: list[tuple[object, ...]]) -> None:
        pipeline = ActingPipeline()
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
        assert all(act.request.is_over for act in pipeline.asked), "a request hangs"

    walk()


def test_each_request_ends_once_and_none_hangs() -> None:
    all_hold(always_kept(100, 30))


BUGS = {
    "a stop begins beside what is carried out": (
        "_begin_what_may",
        "(act.kind is not ActKind.STOP or not others)",
        "True",
    ),
    "whoever has asked waits for what a stop ends": (
        "ask",
        "        self._end(Ending.STOP)\n",
        "        pass\n",
    ),
    "what has been cancelled is done": ("ended", "if not act.request.is_over:", "if True:"),
    "a stop waits for ever": ("ended", "    self._begin_what_may()\n", ""),
    "a fence ends nothing": ("lives", "self._end(ending)", "pass"),
    "something begins after a stop": ("_refusal", "self._has_stopped or ", ""),
    "nothing begins after a stop that has failed": ("ended", " and error is None", ""),
    "a replica is begun twice": ("_refusal", "one.subject == act.subject", "False"),
    "what has ended stays under way": ("ended", "    self._open.remove(act)\n", ""),
    "a request is admitted and never begins": ("ask", "    self._begin_what_may()\n", ""),
}


@pytest.mark.parametrize("name", sampled([*BUGS], 3))
def test_a_walk_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, Acts, *BUGS[name])
    with pytest.raises((AssertionError, PhaseError)):
        all_hold(until_found(30))


@pytest.mark.parametrize("kind", list(ActKind))
@pytest.mark.parametrize("ending", list(Ending))
def test_what_ends_a_request_says_so(kind: ActKind, ending: Ending) -> None:
    pipeline = ActingPipeline()
    act = pipeline.ask(kind, "r")
    pipeline.ask(ActKind.STOP, "p") if ending is Ending.STOP else pipeline.live(ending)
    ends = ENDS[kind].get(ending)
    assert act.request.phase is (ends or RequestPhase.UNDER_WAY)
    asked = [act] * (ends is not None) + [pipeline.ask(kind, "another")] * (ending in ENDS[kind])
    for one in asked:
        with pytest.raises(FencedError if ending is Ending.FENCE else NotCarriedOutError):
            one.request.check()
