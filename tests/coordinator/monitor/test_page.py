"""The pages that people look at: what they say, that it is text, and that it stays small."""

from __future__ import annotations

import base64
import hashlib
import re

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.assigned_shard import AssignedShard
from chandy.coordinator.monitor.activity import SourceActivity
from chandy.coordinator.monitor.facts import Facts, Home, QueryFacts, Unpublished
from chandy.coordinator.monitor.health import troubles
from chandy.coordinator.monitor.page import bars, checkpoints, view, words
from chandy.coordinator.monitor.page.graph import Badge, doing_of, lanes
from chandy.coordinator.monitor.page.render import headers, html
from chandy.coordinator.monitor.page.texts import ordinal
from chandy.coordinator.monitor.state_sizes import OperatorSize
from chandy.coordinator.protocol.life import LifePhase, QueryPhase
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.statistics import History, ShardStatistics
from chandy.coordinator.protocol.totals import PhaseSeconds
from chandy.coordinator.recovery.metrics import RecoveryMetrics
from chandy.state.rpc.metrics import OperatorMetrics
from chandy.storage.checkpoints.journal import JournalEntry
from chandy.storage.checkpoints.manifest import CheckpointKind
from tests.effort import trying

from .known_facts import ACTIVITY, FACTS
from .known_pipeline import KnownPipeline, statistics
from .parsed_page import Parsed

EVIL = "<script>alert(1)</script>&\"'"


def page_of(facts: Facts = FACTS, pipeline: str = "flights", **more: object) -> Parsed:
    known = KnownPipeline()
    given = {
        "assignment": known.assignment(),
        "recoveries": known.recoveries(),
        "statistics": statistics(),
        "history": known.history(),
    } | more
    return Parsed(html(view.overview(pipeline, facts, **given)))  # type: ignore[arg-type]


def test_it_says_in_a_sentence_whether_all_is_well() -> None:
    assert "✓ Well: the query runs; the latest checkpoint completed 10 s ago" in page_of().text
    fresh = attrs.evolve(FACTS, last_completed_at=None, began=995.0)
    assert "✓ Well: the query runs; no checkpoint has completed yet" in page_of(fresh).text
    failed = attrs.evolve(
        FACTS,
        life=LifePhase.FAILED,
        because="out of luck",
        queries={"a": QueryFacts(QueryPhase.ENDED, 3), "b": QueryFacts(QueryPhase.RUNNING, -1)},
        unpublished={"b": Unpublished(1, 900.0)},
    )
    text = page_of(failed).text
    assert "✗ Not well: the pipeline has failed for good: out of luck" in text
    assert "query 'a' has ended" in text
    assert "query a has ended batch 3" in text
    assert "query b runs no batch yet" in text
    assert "still to be published: 1 checkpoint, the oldest 1 min 40 s ago" in text
    waiting = Parsed(html(view.stands_by("flights")))
    assert "✗ Not well: the driver stands by, or takes the pipeline over" in waiting.text
    assert "Checkpoints" not in waiting.text


def test_it_has_the_checkpoints_the_shards_and_the_recoveries() -> None:
    page = page_of()
    phases = "planning: 250 ms collecting: 1.5 s finalizing: 250 ms"
    assert f"1 ✓ completed periodic 1970-01-01 00:00:10 UTC 2.0 s {phases} 200 bytes 14 bytes" in page.text
    assert "2 ✗ failed: EXPIRED savepoint 1970-01-01 00:00:20 UTC 1.0 s failed: 1.0 s" in page.text
    assert "3 … in progress manual 1970-01-01 00:00:30 UTC" in page.text
    assert {"/checkpoints/1", "/checkpoints/2", "/checkpoints/3"} <= {one["href"] for one in page.of("a")}
    assert (
        "totals of query q in no checkpoint yet in 2 shards; the largest has 2.0 times the average."
        in page.text
    )
    assert "shard 0: 100 bytes on near" in page.text
    assert "shard 0: 100 bytes, near" in page.text
    assert "shard 1: 0 bytes, no machine yet" in page.text
    assert "near 1 3" in page.text
    assert "query totals runs batch 7 1,234 rows/s 30 offsets behind" in page.text
    assert "exactly once" in page.text
    assert "warehouse totals, total postgres table runs 39" in page.text
    ended = attrs.evolve(
        FACTS.replicas["warehouse"], is_active=False, error="<b>refused</b>\nmore", checkpoint=None
    )
    told = page_of(attrs.evolve(FACTS, replicas={"warehouse": ended}))
    assert "postgres table has ended: <b>refused</b> none yet" in told.text
    assert "Replicas" not in page_of(attrs.evolve(FACTS, replicas={})).text
    assert (
        "next follows 1,200 3 differs since batch 53 of query 'totals': state 'total' of operator 'totals': "
        "1 keys with other values carrier=<b>AA</b>: leader has total=5, shadow has total=6" in page.text
    )
    assert "Shadows" not in page_of(attrs.evolve(FACTS, shadows={})).text
    worked = page_of(attrs.evolve(FACTS, work={"totals": FACTS.work["delays"]}))
    assert "1,100 rows, 3 late, 1 into dead letters, in 4.0 s of all its tasks." in worked.text
    assert "input: 1.0 s own: 2.2 s state: 500 ms output: 250 ms" in worked.text
    assert "in place not yet 1 <b>boom</b>" in page.text
    assert "1970-01-01 00:00:04 UTC 2 goes back <i>bang</i>" in page.text
    often = JournalEntry(
        at=1.0, what="checkpoint failed", says="full\nmore", checkpoint=9, times=3, until=61.0
    )
    told = page_of(history=(often,)).text
    assert "0 checkpoint failed, 3 times until 1970-01-01 00:01:01 UTC 9 full As of" in told


def test_a_bar_has_the_parts_of_a_recovery_in_hundredths_of_the_longest() -> None:
    (slow, quick) = (
        RecoveryMetrics("start", None, False, 5.0, 0, 1, 2, 3, 4),
        RecoveryMetrics("boom", 1, True, 9.0, 1, 0, 0, 0, 1.5),
    )
    first, second = (
        page_of(recoveries=(slow, quick)).text,
        view.overview("p", FACTS, statistics(), (), (slow, quick)),
    )
    assert "waiting: 1.0 s" in first
    assert [(part.name, part.start, part.width) for part in second.recoveries[0].bar.parts] == [
        ("waiting", 0, 10),
        ("first batch", 10, 15),
    ]
    assert [(part.name, part.start, part.width) for part in second.recoveries[1].bar.parts] == [
        ("stopping", 0, 10),
        ("restoring", 10, 20),
        ("starting", 30, 30),
        ("first batch", 60, 40),
    ]


def test_a_checkpoint_has_the_phases_of_its_slowest_shards() -> None:
    (known,) = (one for one in statistics().checkpoints if one.id == 1)
    page = Parsed(html(checkpoints.checkpoint("flights", known)))
    assert "Checkpoint 1 of flights ✓ completed" in page.text
    assert "planning: 250 ms collecting: 1.5 s finalizing: 250 ms" in page.text
    assert "totals 2 shards, 200 bytes, 14 bytes of it new." in page.text
    assert "1 310 ms start delay: 100 ms sync: 10 ms async: 200 ms 100 bytes 7 bytes" in page.text
    many = attrs.evolve(
        known, shards=[ShardStatistics("t", at, 0, at, 0, 0, at, 1, 1, 1) for at in range(10_000)]
    )
    page = Parsed(html(checkpoints.checkpoint("flights", many)))
    assert "10000 shards, 10.0 kB, 10.0 kB of it new. The slowest 20:" in page.text
    assert page.text.index("9999") < page.text.index("9980")
    assert "9979" not in page.text


def test_all_text_is_text() -> None:
    facts = attrs.evolve(
        FACTS,
        life=LifePhase.FAILED,
        because=EVIL,
        queries={EVIL: QueryFacts(QueryPhase.ENDED, 1)},
        hosts={EVIL: 1},
        operators={EVIL: OperatorSize(EVIL, 1, 1)},
    )
    page = page_of(
        facts,
        pipeline=EVIL,
        assignment=(AssignedShard(EVIL, EVIL, 0, EVIL, EVIL, 1, 5, EVIL, EVIL, EVIL),),
        recoveries=(RecoveryMetrics(EVIL, None, False, 1.0),),
    )
    assert page.text.count(EVIL) >= 7
    assert len(page.of("script")) == 1


def test_a_browser_runs_nothing_but_what_is_in_the_page() -> None:
    page = html(view.stands_by("p"))
    policy = headers()["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"<[^>]* (style|on\w+)=", page), "the policy would not let it through"
    assert not re.search(r"(src|href)=\"(?!/|#)", page), "nothing comes from elsewhere"


@pytest.mark.parametrize("shards", [64, 65, 1000, 10_000])
def test_a_page_is_as_large_with_ten_thousand_shards_as_with_some(shards: int) -> None:
    assignment = tuple(AssignedShard("q", "t", at, "m", "e", 1, at) for at in range(shards))
    made = view.overview(
        "p", FACTS, statistics(), assignment, [RecoveryMetrics("x" * 100, 1, True, 1.0)] * 500
    )
    (operator,) = made.operators
    assert len(operator.cells) == 64
    assert operator.cells[0].level in (0, 1)
    assert operator.cells[-1].level == 4
    assert operator.largest[0].startswith(f"shard {shards - 1}: ")
    assert len(html(made)) < 100_000


@trying(25)
@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200))
def test_every_shard_is_in_one_cell_which_is_as_dark_as_its_largest(sizes: list[int]) -> None:
    assignment = tuple(AssignedShard("q", "t", at, "m", "e", 1, size) for at, size in enumerate(sizes))
    (operator,) = view.overview("p", FACTS, statistics(), assignment, ()).operators
    seen: list[int] = []
    for cell in operator.cells:
        first, *last = map(int, re.findall(r"\d+", cell.says.partition(":")[0]))
        some = list(range(first, (last or [first])[0] + 1))
        seen += some
        largest = max(sizes[at] for at in some)
        assert (cell.level == 0) == (largest == 0)
        assert (cell.level == view.LEVELS) >= (largest == max(sizes) > 0)
        assert 0 <= cell.level <= view.LEVELS
    assert seen == list(range(len(sizes)))


@trying(25)
@given(
    st.lists(st.tuples(*[st.floats(0, 1e6)] * 5), max_size=30),
    st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e7), st.booleans()), max_size=30),
)
def test_no_drawing_leaves_its_place(
    recoveries: list[tuple[float, ...]], checkpoints: list[tuple[float, float, bool]]
) -> None:
    history = History()
    for number, (begun, took, is_over) in enumerate(checkpoints):
        history.started(number, CheckpointKind.PERIODIC, begun)
        if is_over:
            history.completed(number, begun + took, size=1, new_bytes=1, phases=PhaseSeconds(took))
    known = [RecoveryMetrics("x", 1, True, 5.0, *parts) for parts in recoveries]
    past = [JournalEntry(at=begun, what="goes back", says="") for begun, *_ in checkpoints]
    made = view.overview("p", FACTS, history.snapshot(), (), known, past)
    rows = [each for row in made.checkpoints for each in getattr(row, "rows", [row])]
    for row in (*made.recoveries, *rows):
        assert all(part.start >= 0 and part.start + part.width <= 100.1 for part in row.bar.parts)
    html(made)


@trying(40)
@given(st.lists(st.floats(0, 1e9), max_size=50))
def test_no_long_bar_flattens_all_others(values: list[float]) -> None:
    top = bars.scale(values)
    shown = [value for value in values if value > 0]
    assert top <= max(shown, default=0.0)
    assert sum(value >= top / 4.01 for value in shown) >= len(shown) / 2


def test_what_is_longer_than_the_scale_says_so() -> None:
    made = bars.bar([("planning", 1.0), ("collecting", 30.0), ("finalizing", 1.0)], 4.0)
    assert [(part.name, part.start, part.width) for part in made.parts] == [
        ("planning", 0.0, 25.0),
        ("collecting", 25.0, 75.0),
    ]
    assert made.is_cut
    assert not bars.bar([("planning", 1.0), ("collecting", 3.0)], 4.0).is_cut


def test_equal_checkpoints_are_one_line_and_what_failed_stays() -> None:
    history = History()
    for number in range(1, 11):
        history.started(number, CheckpointKind.PERIODIC, 10.0 * number)
        if number == 5:
            history.failed(number, 10.0 * number + 1, Reason.EXPIRED, phases=PhaseSeconds(1.0))
        else:
            history.completed(number, 10.0 * number + number, size=number, new_bytes=1, phases=PhaseSeconds())
    newest, failed, oldest = checkpoints.folded(history.snapshot().checkpoints)
    assert isinstance(newest, checkpoints.FoldedRow)
    assert isinstance(failed, checkpoints.CheckpointRow)
    assert isinstance(oldest, checkpoints.FoldedRow)
    assert [one.id for one in newest.rows] == [10, 9, 8, 7, 6]
    assert (newest.took, newest.size, newest.new_bytes) == ("8.0 s, at most 10.0 s", "10 bytes", "5 bytes")
    assert (failed.id, failed.reason) == (5, "EXPIRED")
    # Their manifests do not have their phases.
    assert {part.name for row in oldest.rows for part in row.bar.parts} == {"all phases"}


def test_each_failed_checkpoint_has_a_line() -> None:
    history = History()
    for number in range(1, 6):
        history.started(number, CheckpointKind.PERIODIC, 10.0 * number)
        history.failed(number, 10.0 * number + 1, Reason.EXPIRED, phases=PhaseSeconds(1.0))
    rows = checkpoints.folded(history.snapshot().checkpoints)
    assert [row.id for row in rows if isinstance(row, checkpoints.CheckpointRow)] == [5, 4, 3, 2, 1]


def test_a_colour_has_one_meaning_and_no_two_drawings_beside_each_other_the_same() -> None:
    for beside in (
        ("planning", "collecting", "finalizing", "failure", "recovery"),
        ("start delay", "sync", "async"),
        ("input", "own", "state", "output"),
        ("waiting", "stopping", "restoring", "starting", "first batch"),
    ):
        assert len({words.look(name) for name in beside}) == len(beside)
    assert words.look("all phases") != words.look("planning")


def test_every_word_that_is_explained_is_on_a_page() -> None:
    # What is explained that the known pipeline does not have.
    rare = {"all phases", "channel", "source", "start delay", "sync", "async"}
    shown = {one.get("aria-description") for one in page_of().of("span")}
    assert {word for word, says in words.WORDS.items() if says not in shown} <= rare


def test_the_graph_leads_from_sources_to_sinks_and_says_what_holds_others_up() -> None:
    facts = attrs.evolve(
        FACTS,
        queries={
            "alerts": QueryFacts(QueryPhase.RUNNING, 3, "at least once: of its sink", reads=("totals",)),
            "totals": QueryFacts(
                QueryPhase.RUNNING,
                7,
                operators=("delays", "sizes"),
                activity=attrs.evolve(
                    ACTIVITY,
                    sources=(SourceActivity("Kafka", 12.4, 30.0), SourceActivity("files")),
                    sink="table",
                ),
            ),
        },
        work={
            "delays": FACTS.work["delays"],
            "sizes": OperatorMetrics(tasks=1, seconds=4.0, input_seconds=3.5),
        },
    )
    writer, reader = lanes(facts, {"delays": 1.5, "sizes": 3.25})
    assert (writer.query, writer.doing, reader.query) == ("totals", "runs", "alerts")
    assert [[(box.kind, box.name) for box in step] for step in writer.steps] == [
        [("source", "Kafka"), ("source", "files")],
        [("operator", "delays"), ("operator", "sizes")],
        [("query", "totals")],
        [("sink", "table")],
    ]
    assert writer.steps[0][0].facts == ("12 rows/s", "30 offsets behind")
    delays, sizes = writer.steps[1]
    assert delays.facts == ("1,100 rows taken", "works 69 % of its tasks' time", "4.0 kB")
    assert delays.stands_out == ("the busiest operator",)
    assert sizes.stands_out == ("the largest shard: 3.2 times the average",)
    (channel,), _, (sink,) = reader.steps
    assert (channel.name, channel.facts) == (
        "from totals",
        ("5 rows to be published", "2 files unread, 12 rows"),
    )
    assert sink.badge == Badge("at least once", "of its sink")


@pytest.mark.parametrize(
    ("number", "expected"), [(1, "1st"), (2, "2nd"), (11, "11th"), (23, "23rd"), (112, "112th")]
)
def test_a_generation_is_the_nth_driver(number: int, expected: str) -> None:
    assert ordinal(number) == expected


def test_the_head_says_where_the_pipeline_lives() -> None:
    home = Home(
        storage="s3://b/p", machine="node-1", pid=7, application="app-1", spark_ui="http://node-1:4040"
    )
    page = page_of(attrs.evolve(FACTS, home=home))
    assert (
        "3rd driver of this pipeline on node-1, pid 7 Spark application app-1 storage s3://b/p" in page.text
    )
    assert "http://node-1:4040" in {one["href"] for one in page.of("a")}
    unsafe = page_of(attrs.evolve(FACTS, home=attrs.evolve(home, spark_ui="javascript:alert(1)")))
    assert "javascript:alert(1)" not in {one["href"] for one in unsafe.of("a")}


def test_times_are_told_to_a_browser_which_shows_its_own() -> None:
    shown = {one["datetime"]: one["title"] for one in page_of().of("time")}
    assert shown["1970-01-01T00:00:10Z"] == "1970-01-01 00:00:10 UTC"


def test_only_who_has_a_token_is_offered_actions() -> None:
    assert not page_of().of("form")
    offered = {one["data-path"]: one["data-asks"] for one in page_of(may_order=True).of("form")}
    assert set(offered) == {"checkpoints", "savepoints", "drain", "rescale", "switch", "stop"}
    assert all(offered.values())


def test_a_query_is_not_ready_before_it_has_committed_a_batch() -> None:
    starting = QueryFacts(QueryPhase.STARTING, -1)
    assert list(troubles(attrs.evolve(FACTS, queries={"q": starting}))) == ["query 'q' starts"]


def test_a_query_that_restarts_is_not_well_and_says_why_how_often_and_when() -> None:
    waiting = QueryFacts(QueryPhase.WAITING, 3, because="boom", attempts=3, next_attempt_at=1012.0)
    facts = attrs.evolve(FACTS, queries={"q": waiting})
    assert list(troubles(facts)) == ["query 'q' restarts, attempt 3, in 12 s: boom"]
    assert doing_of(waiting, facts) == ("restarts", "restarts, attempt 3, in 12 s: boom")
    begun = attrs.evolve(waiting, life=QueryPhase.RESTARTING, attempts=1, next_attempt_at=None)
    assert list(troubles(attrs.evolve(FACTS, queries={"q": begun}))) == ["query 'q' restarts: boom"]
