"""A task begins its batch first, applies its changes last, and applies nothing if it does not end."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

import contextlib

import attrs
import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from chandy.barrier import task as task_module
from chandy.barrier.task import OperatorTask, begin_batch
from chandy.state.errors import (
    HostDismissedError,
    HostLostError,
    MisplacedTaskError,
    OutputTypeError,
    ProcessorError,
    ShardMissingError,
    ShardMovingError,
)
from chandy.state.format.arrow import BYTES
from chandy.state.format.keys import KeyCodec
from chandy.state.format.rows import SLICE
from chandy.state.format.schema import to_json
from chandy.state.operators.pickling import Pickled
from chandy.state.processors.processor import processor_spec
from chandy.state.rpc.messages import BatchTimes, BeginTask, Endpoint
from chandy.state.rpc.metrics import OperatorMetrics
from chandy.storage.checkpoints.manifest import StateRecord

COUNT = StructType().add("count", LongType())
INPUT = StructType().add("k", StringType()).add("n", LongType()).add("ts", TimestampType())
OUTPUT = StructType().add("k", StringType()).add("rows", LongType())
PROPERTIES = {
    "streaming.sql.batchId": "7",
    "sql.streaming.queryId": "query-1",
    "spark.jobGroup.id": "run-1",
}
TIMES = BatchTimes(timestamp_ms=5, watermark_ms=3, late_ms=2)


class CountingRows(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", COUNT)

    def handleInputRows(self, key, rows, timerValues):
        (count,) = self.count.get() or (0,)
        self.count.update((count + sum(1 for _ in rows),))
        yield Row(k=key[0], rows=self.count.get()[0])

    def close(self):
        pass


class RaisingCounts(CountingRows):
    def handleInputRows(self, key, rows, timerValues):
        raise ValueError("user's own")


class YieldsText(CountingRows):
    def handleInputRows(self, key, rows, timerValues):
        self.count.update((1,))
        yield Row(k=key[0], rows="many")


class YieldsMuch(CountingRows):
    def handleInputRows(self, key, rows, timerValues):
        self.count.update((1,))
        for n in range(2 * SLICE):
            yield (key[0], n)


class NotedHost:
    """A state host and the way to it, which notes what a task does in which order."""

    def __init__(self):
        self.events = []
        self.held = {}
        self.failures = []
        self.lost = False
        self.times = TIMES
        self.fresh = frozenset()
        self.metrics = OperatorMetrics()

    def connect(self, endpoint):
        self.events.append(("connect", endpoint.address))
        return self

    def begin(self, task):
        self.events.append(task)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exit):
        self.events.append("leave")

    def fetch(self, shards, keys):
        self.events.append("fetch")
        return pa.array([self.held.get(key) for key in keys.to_pylist()], BYTES)

    def scan(self, start, stop):
        return iter(())

    def apply(self, changes):
        self.events.append("apply")
        for entries in changes:
            self.held.update(zip(entries.keys.to_pylist(), entries.values.to_pylist(), strict=True))

    def report(self, failure):
        if self.lost:
            raise HostLostError("unix:/nowhere", "gone")
        self.failures.append(failure)


class TaskOfBatch:
    def __init__(self, partition, properties):
        self._partition = partition
        self._properties = properties

    def partitionId(self):
        return self._partition

    def getLocalProperty(self, name):
        return self._properties.get(name)


@pytest.fixture
def host():
    return NotedHost()


@pytest.fixture(autouse=True)
def runs_in(monkeypatch):
    def run_in(partition=1, properties=PROPERTIES):
        context = None if properties is None else TaskOfBatch(partition, properties)
        monkeypatch.setattr(TaskContext, "get", classmethod(lambda cls: context))

    run_in()
    return run_in


def task_of(host, processor=None, spec=None):
    made = spec or processor_spec(
        INPUT, uid="delays", key=["k"], processor=processor or CountingRows(), output=OUTPUT
    )
    return OperatorTask(
        uid="delays",
        key=to_json(StructType([INPUT["k"]])),
        shards=16,
        parallelism=4,
        spec=Pickled.of(made, "delays"),
        endpoint=Endpoint("grpc://driver:1", "secret", "flights", 1 << 20, "/cache", "/run"),
        connect=host.connect,
    )


@attrs.frozen
class NotedSpec:
    """An operator that does nothing, and notes in a list of this module where it was opened."""

    states: dict = attrs.field(factory=dict)
    output: str = to_json(OUTPUT)

    @contextlib.contextmanager
    def open(self, run):
        OPENED.append((run, self.states))
        try:
            yield self
        finally:
            OPENED.append("closed")

    prefixes = ()
    late_rows = 0

    def prepare(self, batches):
        return pa.Table.from_batches(list(batches))

    def begin(self, state, attempts):
        pass

    def process(self, chunk, state):
        raise RuntimeError("a bug")
        yield

    def finish(self, state, attempts):
        return iter(())


OPENED = []


def batch(*keys, shard=4):
    return pa.RecordBatch.from_pydict(
        {
            "k": pa.array(keys, pa.string()),
            "n": pa.array(range(len(keys)), pa.int64()),
            "ts": pa.array([None] * len(keys), pa.timestamp("us", "UTC")),
            "__chandy_shard": pa.array([shard] * len(keys), pa.int32()),
        }
    )


def test_a_task_begins_its_own_shards_before_it_pulls_any_input_and_applies_after_its_last_output(host):
    def batches():
        host.events.append("input")
        yield batch("a", "b", "a")

    for part in task_of(host)(batches()):
        host.events.append(part.to_pylist())
    assert host.events == [
        ("connect", "grpc://driver:1"),
        BeginTask("query-1", 7, "delays", (4, 5, 6, 7)),
        "input",
        "fetch",
        [{"k": "a", "rows": 2}, {"k": "b", "rows": 1}],
        "apply",
        "leave",
    ]


def test_an_operator_knows_where_it_runs_and_is_closed_whatever_happens(host):
    OPENED.clear()
    with pytest.raises(RuntimeError, match="a bug"):
        list(attrs.evolve(task_of(host, spec=NotedSpec()), watermark_lag_ms=1)(iter([batch("a")])))
    (run, _), closed = OPENED
    assert closed == "closed"
    assert (run.uid, run.query_id, run.run_id, run.batch, run.partition) == (
        "delays",
        "query-1",
        "run-1",
        7,
        1,
    )
    assert (run.shards, run.times) == (range(4, 8), TIMES.lagging(1))
    assert "apply" not in host.events


def test_a_task_with_other_records_of_its_states_opens_the_operator_with_them(host):
    OPENED.clear()
    records = {"count": StateRecord(("old", "new"))}
    with pytest.raises(RuntimeError):
        list(task_of(host, spec=NotedSpec()).with_spec(NotedSpec(states=records))(iter([batch("a")])))
    assert OPENED[0][1] == records


def test_state_of_one_task_is_seen_by_the_next(host):
    list(task_of(host)(iter([batch("a"), batch("a", "b")])))
    (part,) = task_of(host)(iter([batch("a", "b")]))
    assert part.to_pylist() == [{"k": "a", "rows": 3}, {"k": "b", "rows": 2}]


def test_a_task_without_input_begins_and_applies_nothing_changed(host):
    assert list(task_of(host)(iter([]))) == []
    assert host.events[1:] == [BeginTask("query-1", 7, "delays", (4, 5, 6, 7)), "apply", "leave"]
    assert host.held == {}


def test_a_task_that_spark_stops_pulling_applies_nothing(host):
    running = task_of(host, YieldsMuch())(iter([batch("a")]))
    next(running)
    running.close()
    assert "apply" not in host.events
    assert host.events[-1] == "leave"
    assert host.failures == []


def test_a_processor_that_raises_is_reported_and_nothing_is_applied(host):
    with pytest.raises(ProcessorError, match="user's own"):
        list(task_of(host, RaisingCounts())(iter([batch("a")])))
    assert "apply" not in host.events
    (failure,) = host.failures
    assert (failure.query_id, failure.batch, failure.uid, failure.key) == (
        "query-1",
        7,
        "delays",
        "key ('a',)",
    )
    assert "user's own" in failure.traceback
    assert "user's own" in failure.summary
    assert failure.summary.endswith("in handleInputRows")


def test_output_that_does_not_fit_is_reported_and_nothing_is_applied(host):
    with pytest.raises(OutputTypeError, match="column 'rows'"):
        list(task_of(host, YieldsText())(iter([batch("a")])))
    assert "apply" not in host.events
    assert "expected bigint, found 'many' (str)" in host.failures[0].summary


def test_the_processors_error_is_raised_also_when_it_cannot_be_reported(host):
    host.lost = True
    with pytest.raises(ProcessorError, match="user's own"):
        list(task_of(host, RaisingCounts())(iter([batch("a")])))


@pytest.mark.parametrize(
    "properties", [None, {}, {"streaming.sql.batchId": "7"}, {"sql.streaming.queryId": "q"}]
)
def test_a_task_outside_of_a_streaming_batch_says_what_threads_need(host, runs_in, properties):
    runs_in(properties=properties)
    with pytest.raises(MisplacedTaskError, match=r"coordinator\.start.*threads.*inheritable_thread_target"):
        list(task_of(host)(iter([batch("a")])))
    assert host.events == []


def test_batch_zero_is_a_batch(host, runs_in):
    runs_in(properties=PROPERTIES | {"streaming.sql.batchId": "0"})
    list(task_of(host)(iter([])))
    assert host.events[1].batch == 0


def test_a_partition_that_the_operator_does_not_have_is_refused(host, runs_in):
    runs_in(partition=4)
    with pytest.raises(MisplacedTaskError, match="a partition below 4"):
        list(task_of(host)(iter([batch("a")])))
    assert host.events == []


def test_rows_of_another_partitions_shards_are_refused(host):
    with pytest.raises(MisplacedTaskError, match=r"rows of shards \[3\]"):
        list(task_of(host)(iter([batch("a"), batch("b", shard=3), batch("c", shard=8)])))
    assert "apply" not in host.events


def test_a_task_survives_pickling(host):
    task = attrs.evolve(task_of(host), connect=print)
    assert cloudpickle.loads(cloudpickle.dumps(task)) == task
    assert task.key_schema == StructType().add("k", StringType())
    assert KeyCodec(task.key_schema).encode(("a",))


class TestBegun:
    """A task waits for its shards to get another owner."""

    class Client:
        def __init__(self, *outcomes):
            self.outcomes = list(outcomes)
            self.connected = 0

        def connect(self):
            self.connected += 1
            return self

        def begin(self, task):
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    TASK = BeginTask("q", 1, "op", (0,))

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch):
        monkeypatch.setattr(task_module, "_PAUSE", 0.0)

    def test_it_begins_once_there_is_an_owner_by_a_host_that_may_be_new(self):
        gone = HostLostError("a", "gone"), HostDismissedError("a"), ShardMovingError("op", 0)
        client = self.Client(*gone, "access")
        assert begin_batch(client.connect, self.TASK, 60.0) == (client, "access")
        assert client.connected == 4

    def test_without_standbys_it_fails_at_once(self):
        client = self.Client(HostLostError("a", "gone"), "access")
        with pytest.raises(HostLostError):
            begin_batch(client.connect, self.TASK, 0.0)

    def test_what_is_no_loss_fails_at_once(self):
        client = self.Client(ShardMissingError("op/0", "a"), "access")
        with pytest.raises(ShardMissingError):
            begin_batch(client.connect, self.TASK, 60.0)
