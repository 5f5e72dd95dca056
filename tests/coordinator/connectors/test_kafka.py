from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.connectors.kafka import topics as kafka_topics
from chandy.coordinator.connectors.kafka.sink import KafkaSink
from chandy.coordinator.errors import ConfigError
from chandy.coordinator.sinks.two_phase.contract import Committer, Epoch, Fence, TwoPhaseSink, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputError, OutputTakenError, TargetUnavailableError
from chandy.storage.checkpoints.manifest import EpochRecord, Handle
from chandy.storage.errors import DamagedError, FencedError
from chandy.testing import SinkTarget

from ...effort import chance, rounds, sampled
from ...storage.servers import free_port
from ...waiting import DEADLINE, eventually
from .boundaries import Server as ServerBoundary
from .boundaries import kafka_requests
from .kafka_broker import (
    PASSWORD,
    START,
    STRANGER,
    Broker,
    KafkaProxy,
    delete_topic,
    ends_a_transaction,
    new_topic,
    read,
)
from .kafka_broker import kafka as kafka
from .kafka_targets import KafkaTarget, before, ends, topics, values
from .kafka_targets import topic as topic
from .races import LivesConformance
from .steps import Stepped, StepsConformance

pytestmark = pytest.mark.server


class TestConformance(LivesConformance):
    @pytest.fixture
    def target(self, kafka: Broker) -> KafkaTarget:
        return KafkaTarget(kafka, new_topic(kafka), f"positions-{uuid.uuid4().hex[:8]}")


def through(sink: TwoPhaseSink, port: int) -> TwoPhaseSink:
    """The same sink through a proxy."""
    assert isinstance(sink, KafkaSink)
    return attrs.evolve(sink, bootstrap_servers=f"127.0.0.1:{port}")


class TestSteps(StepsConformance):
    @pytest.fixture
    def stepped(self, kafka: Broker) -> Stepped:
        def make() -> SinkTarget:
            return KafkaTarget(kafka, new_topic(kafka, 1), f"positions-{uuid.uuid4().hex[:8]}")

        # The broker sends its clients to this port.
        return Stepped(make, ServerBoundary(kafka.behind, kafka_requests, through, own_port=kafka.proxy))


# --- what arrives -------------------------------------------------------------------------------------------


@attrs.frozen
class Flights:
    """A pipeline without Spark whose rows are whatever a test gives it."""

    sink: KafkaSink
    store: str

    def recover(self, generation: int = 1, uid: str | None = None) -> Committer:
        return self.sink.recover(Fence("flights", "delays", uid or self.sink.uid, self.store, generation))

    def epoch(self, id: int, *files: pa.Table) -> Epoch:
        staged = [
            self.sink.write(iter(rows.to_batches()), WriteContext(self.store, "staged/delays/", number, 0))
            for number, rows in enumerate(files)
        ]
        files_of = tuple(file for one in staged for file in one.files)
        return Epoch(EpochRecord(id, sum(one.rows for one in staged), Handle(files_of)), self.store)


@pytest.fixture
def flights(kafka: Broker, topic: str, tmp_path: Path) -> Flights:
    sink = KafkaSink(
        bootstrap_servers=kafka.servers,
        topic=topic,
        position_topic=f"positions-{uuid.uuid4().hex[:8]}",
        timeout="30 s",
    )
    return Flights(sink, f"file://{tmp_path}/store/flights/")


def having(flights: Flights, **fields: Any) -> Flights:
    return attrs.evolve(flights, sink=attrs.evolve(flights.sink, **fields))


def rows_of(*values: str, **columns: pa.Array) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.string()), **columns})


def test_it_is_told_how_far_readers_can_read(
    kafka: Broker, topic: str, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keyed(partition: int, *rows: str) -> pa.Table:
        return rows_of(*rows, partition=pa.array([partition] * len(rows), pa.int32()))

    sink = flights.sink
    committer = flights.recover()

    def is_known() -> bool:
        try:
            return sink.committed_offsets(30.0) == {0: 0, 1: 0, 2: 0}
        except TargetUnavailableError:
            # The partitions of a new topic have no leader for a moment.
            return False

    eventually(is_known)
    committer.commit(flights.epoch(1, keyed(0, "a", "b", "c"), keyed(2, "d")))
    # The end of a transaction has an offset, too.
    assert sink.committed_offsets(30.0) == {0: 4, 1: 0, 2: 2}
    with pytest.raises(OutputError):
        committer.commit(flights.epoch(2, keyed(2, "f"), keyed(99, "g")))
    assert sink.committed_offsets(30.0)[0] == 4
    assert having(flights, topic=None).sink.committed_offsets(30.0) == {}
    with pytest.raises((TargetUnavailableError, OutputError)):
        having(flights, bootstrap_servers=f"127.0.0.1:{free_port()}").sink.committed_offsets(0.5)
    monkeypatch.setattr(kafka_topics, "GRACE", 0.5)
    with pytest.raises(OutputError, match="does not have topic"):
        having(flights, topic="missing").sink.committed_offsets(30.0)


def test_keys_headers_and_partitions_arrive(kafka: Broker, topic: str, flights: Flights) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.table(
        {
            "key": pa.array(["a", None]),
            "value": pa.array([b"\x00\xff", None], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], kind),
            "partition": pa.array([2, 1], pa.int32()),
        }
    )
    flights.sink.check(rows.schema)
    flights.recover().commit(flights.epoch(1, rows))
    null, full = read(kafka.servers, topic)
    assert (full.key, full.value, full.partition) == (b"a", b"\x00\xff", 2)
    assert full.headers == [("h", b"1"), ("h", None)]
    assert (null.key, null.value, null.partition, null.headers) == (None, None, 1, None)


def test_keys_go_to_the_partitions_that_kafkas_own_clients_choose(
    kafka: Broker, topic: str, flights: Flights
) -> None:
    # Hashes of Kafka's own tests: murmur2 as signed 32 bits.
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    keys = list(hashes)
    flights.recover().commit(flights.epoch(1, rows_of("1", "2", "3", key=pa.array(keys))))
    found = {(one.key or b"").decode(): one.partition for one in read(kafka.servers, topic)}
    assert found == {key: (code & 0x7FFFFFFF) % 3 for key, code in hashes.items()}


def test_rows_name_their_own_topics(kafka: Broker, topic: str, flights: Flights) -> None:
    other = new_topic(kafka)
    by_row = having(flights, topic=None)
    rows = rows_of("1", "2", "3", topic=pa.array([topic, other, topic]))
    by_row.sink.check(rows.schema)
    by_row.recover().commit(by_row.epoch(1, rows))
    assert (values(kafka, topic), values(kafka, other)) == (["1", "3"], ["2"])


def test_rows_of_a_key_keep_the_order_of_their_batches(kafka: Broker, topic: str, flights: Flights) -> None:
    numbers = [str(number) for number in range(6_000)]
    keys = pa.array([f"k{int(number) % 7}" for number in numbers])
    files = [
        rows_of(*numbers[at : at + 2_000], key=keys.slice(at, 2_000)) for at in range(0, len(numbers), 2_000)
    ]
    flights.recover().commit(flights.epoch(1, *files))
    found: dict[bytes | None, list[str]] = {}
    for one in read(kafka.servers, topic):
        found.setdefault(one.key, []).append((one.value or b"").decode())
    assert found == {
        f"k{rest}".encode(): [number for number in numbers if int(number) % 7 == rest] for rest in range(7)
    }


def test_more_rows_than_the_client_keeps_in_memory_arrive(
    kafka: Broker, topic: str, flights: Flights
) -> None:
    small = having(flights, options={"queue.buffering.max.messages": 50})
    small.recover().commit(small.epoch(1, rows_of(*map(str, range(2_000)))))
    assert values(kafka, topic) == sorted(map(str, range(2_000)))


def test_readers_of_what_is_committed_see_whole_epochs(kafka: Broker, flights: Flights) -> None:
    topic = new_topic(kafka, partitions=1)
    one = having(flights, topic=topic)
    committer = one.recover()
    seen: list[Counter[str]] = []
    with ThreadPoolExecutor(1) as pool:
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                seen.append(Counter(values(kafka, topic)))

        looking = pool.submit(look)
        try:
            for last in range(1, 81):
                committer.commit(one.epoch(last, rows_of(*[str(last)] * 300), rows_of(*[str(last)] * 300)))
                # A reader comes in between, however much slower it is.
                eventually(lambda: len(seen) >= last // 20 or looking.done(), "a reader's end")  # noqa: B023
        finally:
            done.set()
        looking.result()
    assert [found for found in seen if set(found.values()) - {600}] == []
    assert Counter(values(kafka, topic)) == {str(number): 600 for number in range(1, last + 1)}


# --- lives --------------------------------------------------------------------------------------------------


STEPS = ["begin", "send", "flush", "send marker", "flush marker", "commit", "end"]
TRIED_STEPS = sampled([pytest.param(at, id=name) for at, name in enumerate(STEPS[:-1])], 2)


@pytest.mark.parametrize("step", TRIED_STEPS)
def test_a_life_that_is_shut_out_between_two_steps_publishes_nothing(
    step: int, kafka: Broker, topic: str, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = flights.recover(1)
    zombie.commit(flights.epoch(1, rows_of("before")))
    successors: list[Committer] = []
    before(step, lambda: successors.append(flights.recover(2)), monkeypatch)
    with pytest.raises(FencedError) as error:
        zombie.commit(flights.epoch(2, rows_of("zombie")))
    assert error.value.by == 2
    (successor,) = successors
    assert successor.position == 1
    successor.commit(flights.epoch(2, rows_of("after")))
    assert values(kafka, topic) == ["after", "before"]


def test_an_earlier_life_that_comes_back_does_not_disturb_the_one_that_publishes(
    kafka: Broker, topic: str, flights: Flights
) -> None:
    life = flights.recover(2)
    with pytest.raises(FencedError):
        flights.recover(1)
    with pytest.raises(OutputTakenError):
        attrs.evolve(flights, store=flights.store + "other/").recover(9)
    # Until an earlier life can read that it is one, it may have taken the connection, for a moment.
    published(flights, flights.epoch(1, rows_of("a")), life, 2)
    assert values(kafka, topic) == ["a"]


def test_a_connection_that_another_one_of_its_life_replaces_is_tried_again(
    kafka: Broker, topic: str, flights: Flights
) -> None:
    first = flights.recover(1)
    second = flights.recover(1)
    with pytest.raises(TargetUnavailableError, match="no longer be used"):
        first.commit(flights.epoch(1, rows_of("a")))
    with pytest.raises(TargetUnavailableError):
        first.commit(flights.epoch(1, rows_of("a")))
    second.commit(flights.epoch(1, rows_of("b")))
    assert values(kafka, topic) == ["b"]


def test_of_two_lives_that_start_at_once_the_later_one_publishes(
    kafka: Broker, topic: str, flights: Flights
) -> None:
    def life(generation: int) -> str:
        """Publish two epochs as the publisher does: again and again until it is shut out."""
        while True:
            try:
                committer = flights.recover(generation)
                for id in range((committer.position or 0) + 1, 3):
                    committer.commit(flights.epoch(id, rows_of(f"epoch {id}")))
                return "published"
            except TargetUnavailableError:
                continue
            except FencedError:
                return "fenced"

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(life, [1, 2, 3, 4]))
    assert ends[-1] == "published"
    assert flights.recover(4).position == 2
    assert values(kafka, topic) == ["epoch 1", "epoch 2"]


@pytest.mark.full(
    "coordinator/connectors/test_kafka.py::test_of_two_lives_that_start_at_once_the_later_one_publishes"
)
def test_a_writer_that_publishes_much_does_not_keep_others_from_recovering(
    kafka: Broker, topic: str, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = flights.recover(uid="one")
    hasty = having(flights, timeout="15 s")
    before(STEPS.index("send marker"), lambda: hasty.recover(uid="other").close(), monkeypatch)
    one.commit(flights.epoch(1, rows_of("a")))
    assert values(kafka, topic) == ["a"]


def test_a_writer_that_died_in_the_record_of_positions_is_waited_for_in_bounded_time(
    kafka: Broker, topic: str, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiesError(BaseException):
        pass

    def die() -> None:
        raise DiesError

    flights.recover(uid="other").commit(flights.epoch(3, rows_of("b")))
    one = flights.recover(uid="one")
    with monkeypatch.context() as patch:
        before(STEPS.index("commit"), die, patch)
        with pytest.raises(DiesError):
            one.commit(flights.epoch(1, rows_of("a")))
    one.close()
    with pytest.raises(TargetUnavailableError, match="a transaction may be open"):
        having(flights, timeout="10 s").recover(uid="other")
    assert flights.recover(uid="one").position is None
    assert flights.recover(uid="other").position == 3
    assert values(kafka, topic) == ["b"]


def test_a_transaction_that_the_broker_has_ended_is_tried_again_and_the_setting_named(
    kafka: Broker, topic: str, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = having(flights, options={"transaction.timeout.ms": 1_000})
    committer = brief.recover()

    def outlive() -> None:
        eventually(
            lambda: len(set(ends(kafka, flights.sink.position_topic))) == 1, "the end of the transaction"
        )

    with monkeypatch.context() as patch:
        before(STEPS.index("commit"), outlive, patch)
        with pytest.raises(TargetUnavailableError, match=r"transaction\.timeout\.ms"):
            committer.commit(brief.epoch(1, rows_of("a")))
    again = flights.recover()
    assert again.position is None
    again.commit(flights.epoch(1, rows_of("a")))
    assert values(kafka, topic) == ["a"]


# --- answers that are lost, and brokers that die -------------------------------------------------------------


@pytest.fixture
def proxy(kafka: Broker) -> Iterator[KafkaProxy]:
    proxy = KafkaProxy(kafka.proxy, kafka.behind)
    yield proxy
    proxy.close()


def hurry(committer: Committer, sink: KafkaSink) -> None:
    """Let a committer that has had the time to connect wait as briefly as a sink says."""
    committer._sink = sink  # type: ignore[attr-defined]
    committer._producer._cluster = sink._cluster  # type: ignore[attr-defined]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_lost_answer_is_decided_by_the_record(
    arrives: bool, kafka: Broker, topic: str, flights: Flights, proxy: KafkaProxy
) -> None:
    far = having(flights, bootstrap_servers=f"127.0.0.1:{kafka.proxy}")
    first = far.recover()
    first.commit(far.epoch(1, rows_of("a")))
    hasty = far.recover()
    hurry(hasty, having(far, timeout="3 s").sink)
    with proxy.losing(ends_a_transaction, arrives=arrives), pytest.raises(TargetUnavailableError):
        hasty.commit(far.epoch(2, rows_of("b")))
    again = far.recover()
    assert again.position == (2 if arrives else 1)
    if not arrives:
        again.commit(far.epoch(2, rows_of("b")))
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.parametrize("step", TRIED_STEPS)
def test_a_broker_that_is_frozen_during_a_commit_leaves_it_whole_or_undone(
    step: int, kafka: Broker, topic: str, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = having(flights, timeout="2 s")
    with ExitStack() as stack:
        committer = flights.recover()
        hurry(committer, hasty.sink)
        before(step, lambda: stack.enter_context(kafka.frozen()), monkeypatch)
        with pytest.raises(TargetUnavailableError):
            committer.commit(flights.epoch(1, rows_of("a")))
        committer.close()
    again = flights.recover()
    if again.position is None:
        again.commit(flights.epoch(1, rows_of("a")))
    assert values(kafka, topic) == ["a"]


def test_a_broker_that_is_killed_at_any_moment_has_every_row_once(
    kafka: Broker, topic: str, flights: Flights
) -> None:
    moments = chance("kafka")
    ids = iter(range(1, 1_000_000))
    expected: list[str] = []
    committer: Committer | None = None
    with_patience = flights

    def publish() -> None:
        nonlocal committer
        id = next(ids)
        written = [f"{id}-{number}" for number in range(200)]
        expected.extend(written)
        epoch = flights.epoch(id, rows_of(*written[:100]), rows_of(*written[100:]))
        committer = published(with_patience, epoch, committer)

    for number in range(rounds(3, full=20)):
        # The broker is back while the publisher still waits for an answer, or after it has given up.
        with_patience = having(flights, timeout="3 s" if number % 2 else "60 s")
        publish()
        back = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill_and_start, kafka, moments.uniform(0.0, 0.5), back)
            while not back.is_set():
                publish()
            killing.result()
    with_patience = flights
    publish()
    assert sorted(expected) == values(kafka, topic)
    end, stable = ends(kafka, flights.sink.position_topic)
    assert end == stable


def kill_and_start(kafka: Broker, after: float, back: threading.Event) -> None:
    """Kill the broker at a moment that has nothing to do with what happens, and start it again."""
    try:
        threading.Event().wait(after)
        kafka.restart()
    finally:
        back.set()


def published(flights: Flights, epoch: Epoch, committer: Committer | None, generation: int = 1) -> Committer:
    """Publish an epoch as the publisher does: again and again, and only if the position says that it must."""
    deadline = time.monotonic() + START
    errors: list[str] = []
    while True:
        assert time.monotonic() < deadline, (
            f"{len(errors)} attempts have failed, the last ones so: {errors[-8:]}"
        )
        try:
            if committer is None:
                committer = flights.recover(generation)
            if committer.position is None or committer.position < epoch.id:
                committer.commit(epoch)
            return committer
        except TargetUnavailableError as error:
            errors.append(str(error))
            if committer is not None:
                committer.close()
            committer = None


# --- what is not as it must be --------------------------------------------------------------------------------


def refusal(committer: Committer, epoch: Epoch) -> OutputError:
    """How an epoch is refused; the position stays, and the connection is of no more use."""
    position = committer.position
    with pytest.raises(OutputError) as error:
        committer.commit(epoch)
    assert committer.position == position
    with pytest.raises(TargetUnavailableError, match="closed"):
        committer.commit(epoch)
    return error.value


def test_a_missing_topic_is_named_and_not_made(
    kafka: Broker, topic: str, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The topic that is there has been known for a while.
    assert values(kafka, topic) == []
    monkeypatch.setattr(kafka_topics, "GRACE", 0.5)
    name = f"missing-{uuid.uuid4().hex[:8]}"
    lost = having(flights, topic=name)
    with pytest.raises(OutputError, match=name):
        lost.sink.check(rows_of("a").schema)
    with pytest.raises(OutputError, match=name):
        lost.recover()
    assert name not in topics(kafka)
    by_row = having(flights, topic=None)
    committer = by_row.recover(2)
    assert name in str(refusal(committer, by_row.epoch(1, rows_of("a", "b", topic=pa.array([topic, name])))))
    by_row.recover(2).commit(by_row.epoch(2, rows_of("c", topic=pa.array([topic]))))
    assert values(kafka, topic) == ["c"]
    assert name not in topics(kafka)


@pytest.mark.parametrize("options", [{}, {"batch.num.messages": 1}], ids=["in a batch", "by itself"])
@pytest.mark.parametrize("size", [2_000, 2_000_000], ids=["for the topic", "for the client"])
def test_a_row_that_is_too_large_is_named(
    size: int, options: dict[str, Any], kafka: Broker, flights: Flights
) -> None:
    topic = new_topic(kafka, partitions=1, **{"max.message.bytes": "1500"})
    small = having(flights, topic=topic, options=options)
    committer = small.recover()
    rows = rows_of("a", "b" * size, "c", key=pa.array(["one", "two", "three"]))
    error = refusal(committer, small.epoch(1, rows))
    assert "the row with key 'two'" in str(error)
    assert f"of topic {topic!r}" in str(error)
    assert "max.message.bytes" in error.advice
    eventually(lambda: len(set(ends(kafka, topic))) == 1, "the end of the transaction")
    again = small.recover()
    assert again.position is None
    # The next row of the partition has a place after the one that was refused.
    again.commit(small.epoch(2, rows_of("d")))
    assert values(kafka, topic) == ["d"]


def test_a_partition_that_is_not_there_is_named(kafka: Broker, topic: str, flights: Flights) -> None:
    committer = flights.recover()
    rows = rows_of("a", "b", key=pa.array(["x", "y"]), partition=pa.array([0, 3], pa.int32()))
    error = refusal(committer, flights.epoch(1, rows))
    assert "the row with key 'y' for partition 3" in str(error)
    assert error.expected == "a partition below 3"
    flights.recover().commit(flights.epoch(2, rows_of("c")))
    assert values(kafka, topic) == ["c"]


def test_a_row_without_a_key_is_refused_by_a_compacted_topic(kafka: Broker, flights: Flights) -> None:
    topic = new_topic(kafka, **{"cleanup.policy": "compact"})
    compacted = having(flights, topic=topic)
    assert "give each row one" in str(refusal(compacted.recover(), compacted.epoch(1, rows_of("a"))))


def test_a_staged_file_that_is_damaged_leaves_the_target_untouched(
    kafka: Broker, topic: str, flights: Flights
) -> None:
    committer = flights.recover()
    epoch = flights.epoch(1, rows_of("a"), rows_of("b"))
    path = Path(flights.store.removeprefix("file://")) / epoch.record.staged.files[1].key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedError):
        committer.commit(epoch)
    flights.recover().commit(flights.epoch(2, rows_of("c")))
    assert values(kafka, topic) == ["c"]


def test_a_broker_that_is_not_there_is_not_available(flights: Flights) -> None:
    nowhere = having(flights, bootstrap_servers=f"127.0.0.1:{free_port()}", timeout="1 s")
    for use in (lambda: nowhere.sink.check(rows_of("a").schema), nowhere.recover):
        with pytest.raises(TargetUnavailableError, match="refused"):
            use()


def password(word: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": STRANGER,
        "sasl.password": word,
    }


def test_a_wrong_password_is_refused_and_not_shown(kafka: Broker, flights: Flights) -> None:
    servers = f"127.0.0.1:{kafka.sasl}"
    locked = having(flights, bootstrap_servers=servers, options=password("wrong"), timeout="10 s")
    with pytest.raises(OutputError, match="credentials") as error:
        locked.recover()
    assert "wrong" not in str(error.value)


def test_missing_permissions_are_named(kafka: Broker, topic: str, flights: Flights) -> None:
    flights.recover().close()
    servers = f"127.0.0.1:{kafka.sasl}"
    stranger = having(flights, bootstrap_servers=servers, options=password(PASSWORD))
    positions = flights.sink.position_topic
    wanted = [
        (positions, "TOPIC", positions, ("DESCRIBE", "READ", "WRITE")),
        (topic, "TOPIC", topic, ("DESCRIBE",)),
        ("transactional id", "TRANSACTIONAL_ID", f"{positions}/flights/delays/sink", ("DESCRIBE", "WRITE")),
    ]
    for named, kind, name, operations in wanted:
        with pytest.raises(OutputError, match="permission") as error:
            stranger.recover(2)
        assert named in str(error.value)
        allow(kafka, kind, name, operations)
    committer = stranger.recover(2)
    error_of_rows = refusal(committer, stranger.epoch(1, rows_of("a")))
    assert topic in str(error_of_rows)
    assert "grant Write" in error_of_rows.advice
    allow(kafka, "TOPIC", topic, ("WRITE",))
    stranger.recover(2).commit(stranger.epoch(2, rows_of("b")))
    assert values(kafka, topic) == ["b"]


def allow(kafka: Broker, kind: str, name: str, operations: Iterable[str]) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    rules = [
        AclBinding(
            ResourceType[kind],
            name,
            ResourcePatternType.LITERAL,
            f"User:{STRANGER}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    # Its futures end with it.
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    for made in admin.create_acls(rules).values():
        made.result(DEADLINE)


def test_a_transaction_timeout_that_the_broker_does_not_allow_is_named(flights: Flights) -> None:
    long = having(flights, options={"transaction.timeout.ms": 3_600_000})
    with pytest.raises(OutputError, match=r"transaction\.max\.timeout\.ms"):
        long.recover()


def test_an_unknown_option_is_refused(flights: Flights) -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.option"):
        having(flights, options={"no.such.option": "1"}).recover()


def test_the_value_of_a_wrong_option_is_not_repeated(flights: Flights) -> None:
    with pytest.raises(ConfigError, match=r"security\.protocol") as error:
        having(flights, options={"security.protocol": "hunter2"}).recover()
    assert "hunter2" not in str(error.value)


# --- the topic of positions -----------------------------------------------------------------------------------


def test_positions_that_were_deleted_are_reported_as_none(
    kafka: Broker, topic: str, flights: Flights
) -> None:
    committer = flights.recover()
    committer.commit(flights.epoch(1, rows_of("a")))
    hurry(committer, having(flights, timeout="3 s").sink)
    delete_topic(kafka.servers, flights.sink.position_topic)
    eventually(lambda: flights.sink.position_topic not in topics(kafka), "the end of the topic")
    with pytest.raises((OutputError, TargetUnavailableError)):
        committer.commit(flights.epoch(2, rows_of("b")))
    committer.close()
    again = flights.recover()
    assert again.position is None
    again.commit(flights.epoch(2, rows_of("b")))
    assert values(kafka, topic) == ["a", "b"]


def test_a_topic_that_would_lose_positions_is_refused(kafka: Broker, flights: Flights) -> None:
    wrong = having(flights, position_topic=new_topic(kafka, partitions=1))
    for use in (lambda: wrong.sink.check(rows_of("a").schema), wrong.recover):
        with pytest.raises(OutputError, match=r"cleanup\.policy=delete"):
            use()


def test_a_topic_that_keeps_something_else_is_refused(kafka: Broker, flights: Flights) -> None:
    from confluent_kafka import Producer

    name = new_topic(kafka, partitions=1, **{"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": kafka.servers})
    producer.produce(name, b"no position", b"flights/delays/sink")
    assert producer.flush(30) == 0
    with pytest.raises(OutputError, match="not one of positions"):
        having(flights, position_topic=name).recover()


def test_the_topic_is_made_as_it_must_be(kafka: Broker, flights: Flights) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    flights.sink.check(rows_of("a").schema)
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    (asked,) = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, flights.sink.position_topic)]
    ).values()
    settings = asked.result(DEADLINE)
    assert settings["cleanup.policy"].value == "compact"
    assert len(admin.list_topics(timeout=30).topics[flights.sink.position_topic].partitions) == 1
