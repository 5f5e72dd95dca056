"""What state hosts leave on their machine for each other, with real RocksDB. Only the coordinator is a plain object."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chandy.state.errors import ShardRefusedError
from chandy.state.host import changelogs as changelogs_module
from chandy.state.host import process as process_module
from chandy.state.host.changelogs import HostChangelogs
from chandy.state.host.changes import Changes
from chandy.state.host.memory import Memory
from chandy.state.host.shard import Shard
from chandy.state.host.shard_key import ShardKey
from chandy.state.host.state_host import StateHost
from chandy.state.local.changelog import Changelog, newest, read
from chandy.state.rpc.client import HostClient
from chandy.state.rpc.messages import BeginTask, CopyReport, CopyStep, Endpoint, ReadValues
from chandy.state.rpc.orders import CompleteOrder, ConfirmOwner, EndStandby, ReleaseOrder, Reopen
from chandy.state.shards import CopyId, RestoreSource, ResumePoint, ShardId, Term
from chandy.storage.checkpoints.files import FileCache

from ...effort import examples
from ...waiting import DEADLINE, eventually
from ..fake_control import FakeControl, order

SHARD = ShardId("op", 0)
KEY = ShardKey("q", "op", 0)
TOKEN = "secret"
HOUR = 3600.0


class MachineHost:
    """A state host, and the changelogs that it keeps for others on the machine."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name, self.store = name, f"file://{directory / 'store'}"
        self.control = FakeControl()
        self.changelogs = HostChangelogs.begin(directory / "changelogs", TOKEN, name)
        self.host = StateHost(
            name,
            self.control,
            directory / name,
            Memory(32 << 20),
            FileCache(directory / "cache"),
            changelogs=self.changelogs,
            peers=HostClient(TOKEN, None),
        )

    def run(self, batch: int, values: dict[bytes, bytes | None]) -> None:
        """Run a batch, whose attempt stages these values."""
        begun = self.host.begin(BeginTask("q", batch, "op", (0,)))
        task = BeginTask("q", batch, "op", (0,), begun.terms)
        changes = {0: Changes.of("op/0", values)} if values else {}
        self.host.stage(task, self.host.shards(task), changes)

    def checkpoint(self, checkpoint: int, cut: int) -> RestoreSource:
        """Take a checkpoint, and have it complete."""
        self.host.obey(order(self.store, checkpoint, cut, (0,)))
        (snapshot,) = self.control.acked().snapshots
        self.host.obey(CompleteOrder(checkpoint))
        return RestoreSource(self.store, checkpoint, cut, snapshot.handle)

    def die(self) -> None:
        """Do nothing any more, and hold nothing."""
        self.changelogs.workspace.release()

    def reopen(self, source: RestoreSource | None, after: int, cut: int, begun: int) -> CopyReport:
        """Open the shard of the host "lost"; it becomes this host's."""
        self.host.obey(Reopen(CopyId(1), "q", SHARD, source, after, "lost", cut, begun, Term(2)))
        report = self.control.moves.get(timeout=DEADLINE)
        if report.step is CopyStep.TAKEN:
            self.host.obey(ConfirmOwner("q", SHARD, self.name, Term(2)))
        return report

    def value(self, key: bytes) -> str | None:
        return self.host.read(ReadValues("q", "op", (key.hex(),), 10**6)).entries.get(key.hex())

    def close(self) -> None:
        self.host.close()


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[MachineHost]:
    made = MachineHost(tmp_path, "lost")
    yield made
    made.close()


@pytest.fixture
def following(tmp_path: Path, lost: MachineHost) -> Iterator[MachineHost]:
    made = MachineHost(tmp_path, "next")
    yield made
    made.close()


def filled(host: MachineHost) -> RestoreSource:
    """Run batches 0 to 3, with a checkpoint after the first; the last one has not committed."""
    host.run(0, {b"a": b"0", b"b": b"0"})
    source = host.checkpoint(1, 0)
    host.run(1, {b"a": b"1", b"c": b"1"})
    host.run(2, {b"b": None})
    host.run(3, {b"c": b"3"})
    return source


def left(host: MachineHost) -> Path:
    """The folder of the shard's changelog of a host that has ended."""
    return host.changelogs.of_lost(host.name, KEY, 0)


def test_a_shard_comes_back_with_what_had_committed_and_what_was_staged(
    lost: MachineHost, following: MachineHost
) -> None:
    source = filled(lost)
    lost.die()
    assert following.reopen(source, 0, 2, 3) == CopyReport("next", CopyId(1), CopyStep.TAKEN, Term(2))
    assert [following.value(key) for key in (b"a", b"b", b"c")] == [b"1".hex(), None, b"3".hex()]
    # What is staged is seen by nobody before it has committed.
    values = following.host.read(ReadValues("q", "op", (b"c".hex(),), 2)).entries
    assert values == {b"c".hex(): b"1".hex()}
    following.run(4, {b"a": b"4"})
    following.checkpoint(2, 4)
    assert [following.value(key) for key in (b"a", b"b", b"c")] == [b"4".hex(), None, b"3".hex()]
    assert not left(lost).exists(), "the changelog takes the disk twice"


def test_a_batch_that_runs_again_takes_the_place_of_what_was_staged(
    lost: MachineHost, following: MachineHost
) -> None:
    source = filled(lost)
    lost.die()
    following.reopen(source, 0, 2, 3)
    following.run(3, {b"a": b"again"})
    following.run(4, {})
    assert [following.value(key) for key in (b"a", b"c")] == [b"again".hex(), b"1".hex()]


def test_a_batch_of_which_nothing_is_staged_must_run_again_before_the_next_begins(
    lost: MachineHost, following: MachineHost
) -> None:
    source = filled(lost)
    lost.die()
    following.reopen(source, 0, 3, 4)
    with pytest.raises(ShardRefusedError, match="batch 4 has committed, but its task"):
        following.run(5, {})
    following.run(4, {b"a": b"4"})
    following.run(5, {})
    assert following.value(b"a") == b"4".hex()


def test_the_next_host_is_lost_too_and_the_one_after_it_has_all(
    tmp_path: Path, lost: MachineHost, following: MachineHost
) -> None:
    source = filled(lost)
    lost.die()
    following.reopen(source, 0, 2, 3)
    following.run(4, {b"a": b"4"})
    following.die()
    third = MachineHost(tmp_path, "third")
    try:
        third.host.obey(Reopen(CopyId(2), "q", SHARD, source, 0, "next", 3, 4, Term(3)))
        assert third.control.moves.get(timeout=DEADLINE).step is CopyStep.TAKEN
        assert [third.value(key) for key in (b"a", b"b", b"c")] == [b"4".hex(), None, b"3".hex()]
    finally:
        third.close()


def test_a_shard_without_a_checkpoint_comes_back_from_its_changelog_alone(
    lost: MachineHost, following: MachineHost
) -> None:
    lost.run(0, {b"a": b"0"})
    lost.run(1, {b"b": b"1"})
    lost.die()
    assert following.reopen(None, -1, 0, 1).step is CopyStep.TAKEN
    assert [following.value(key) for key in (b"a", b"b")] == [b"0".hex(), b"1".hex()]


def test_what_a_lost_host_stages_before_it_ends_counts(lost: MachineHost, following: MachineHost) -> None:
    """It is cut off from the driver, and tells a task that its changes are staged."""
    source = filled(lost)

    def goes_on() -> None:
        lost.run(3, {b"c": b"late"})
        lost.die()

    ending = threading.Timer(0.3, goes_on)
    ending.start()
    assert following.reopen(source, 0, 2, 3).step is CopyStep.TAKEN
    ending.join()
    assert following.value(b"c") == b"late".hex()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def in_last_segment(spoil: Callable[[Path], None]) -> Callable[[MachineHost], None]:
    def spoils(host: MachineHost) -> None:
        spoil(max(left(host).glob("*.log"), key=lambda path: int(path.stem)))

    return spoils


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (in_last_segment(damage), "bytes that are not those that were written"),
        (in_last_segment(lambda path: path.unlink()), "no record"),
        (lambda host: host.changelogs.delete(), "No such file"),
    ],
    ids=["a flipped byte", "a segment that is gone", "a host that has deleted all"],
)
def test_a_changelog_that_does_not_lead_there_is_refused_with_the_reason(
    lost: MachineHost, following: MachineHost, spoil: Callable[[MachineHost], None], why: str
) -> None:
    source = filled(lost)
    lost.die()
    spoil(lost)
    report = following.reopen(source, 0, 3, 3)
    assert report.step is CopyStep.FAILED
    assert why in report.why
    assert following.value(b"a") is None


def test_a_host_that_does_not_end_is_not_waited_for_for_ever(
    lost: MachineHost, following: MachineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelogs_module, "_END_SECONDS", 0.2)
    source = filled(lost)
    report = following.reopen(source, 0, 2, 3)
    assert report.step is CopyStep.FAILED
    assert "a state host that still writes it" in report.why


def test_what_is_given_up_is_not_kept(lost: MachineHost, following: MachineHost) -> None:
    source = filled(lost)
    following.host.obey(Reopen(CopyId(1), "q", SHARD, source, 0, "lost", 2, 3, Term(2)))
    following.host.obey(EndStandby("q", SHARD, CopyId(1)))
    lost.die()
    report = following.control.moves.get(timeout=DEADLINE)
    assert report.step is CopyStep.FAILED
    assert following.value(b"a") is None


def test_a_changelog_of_another_run_is_not_taken_for_that_of_the_shard(
    lost: MachineHost, following: MachineHost
) -> None:
    source = filled(lost)
    lost.die()
    report = following.reopen(source, 0, 2, 2)
    assert report.step is CopyStep.FAILED
    assert "no batch after 2" in report.why


# --- what stays on the disk, and what does not --------------------------------------------------------------


def test_a_run_that_is_over_takes_its_changelogs_along_also_those_of_lost_hosts(
    tmp_path: Path, lost: MachineHost, following: MachineHost
) -> None:
    lost.run(0, {b"a": b"0"})
    following.run(0, {b"a": b"0"})
    # It is looked at before the others.
    living = MachineHost(tmp_path, "a living one")
    try:
        living.run(0, {b"a": b"0"})
        lost.die()
        following.host.obey(ReleaseOrder("q"))
        folders = {host.name: host.changelogs.workspace.path / "q" for host in (lost, following, living)}
        eventually(lambda: not folders["lost"].exists() and not folders["next"].exists(), "the deletion")
        assert folders["a living one"].exists(), "a living host has an order of its own"
    finally:
        living.close()


@pytest.mark.parametrize("token", [TOKEN, "of another driver"])
@pytest.mark.parametrize("age", [0.5 * HOUR, 2 * HOUR])
def test_what_hosts_of_other_drivers_have_left_goes_an_hour_after_its_last_batch(
    tmp_path: Path, token: str, age: float
) -> None:
    root = tmp_path / "changelogs"
    dead = HostChangelogs.begin(root, token, "dead")
    changelog = dead.begin_shard(KEY)
    changelog.append(0)
    changelog.close()
    dead.workspace.release()
    for path in [*root.rglob("*")]:
        os.utime(path, (time.time() - age,) * 2)
    HostChangelogs.begin(root, TOKEN, "host")
    assert dead.workspace.path.exists() == (token == TOKEN or age < HOUR)


def test_what_a_living_host_of_another_driver_keeps_stays(tmp_path: Path) -> None:
    root = tmp_path / "changelogs"
    other = HostChangelogs.begin(root, "of another driver", "host")
    for path in [*root.rglob("*")]:
        os.utime(path, (time.time() - 2 * HOUR,) * 2)
    HostChangelogs.begin(root, TOKEN, "host")
    assert other.workspace.path.exists()


@pytest.mark.parametrize("what", ["a folder that others may write", "a file", "a link"])
def test_a_host_keeps_no_changelogs_where_others_could_put_theirs(tmp_path: Path, what: str) -> None:
    root = tmp_path / "changelogs"
    if what == "a file":
        root.touch()
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        root.symlink_to(tmp_path / "elsewhere")
    else:
        root.mkdir()
        root.chmod(0o777)
    endpoint = Endpoint("grpc://x", TOKEN, "p", 0, str(tmp_path), str(tmp_path), host_changelogs=str(root))
    # The host says so, and serves its shards without.
    assert process_module._changelogs(endpoint, "host") is None


# --- whatever was staged ------------------------------------------------------------------------------------

VALUES = st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([b"0", b"1", None]), max_size=3)


@given(
    attempts=st.lists(st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=6),
    committed=st.integers(0, 6),
    is_staged=st.booleans(),
)
@settings(max_examples=examples(12), deadline=None)
def test_a_shard_that_is_opened_again_goes_on_as_if_it_had_never_been_lost(
    tmp_path_factory: pytest.TempPathFactory,
    attempts: list[list[dict[bytes, bytes | None]]],
    committed: int,
    is_staged: bool,
) -> None:
    """``attempts`` are those at each batch; the last one counts. The last batch may have none, and none may commit."""
    folder = tmp_path_factory.mktemp("shard")
    memory = Memory(32 << 20)
    log = Changelog(folder / "log")
    one = Shard("op/0", folder / "one", memory, changelog=log)
    last = len(attempts) - 1
    for batch, tries in enumerate(attempts):
        one.begin(batch)
        for values in tries if is_staged or batch < last else ():
            one.stage(batch, Changes.of("op/0", values) if values else None)
    cut = min(max(committed, last - 1), last if is_staged else last - 1)
    log.close()
    other = Shard("op/0", folder / "other", memory)
    other.reopen(read(folder / "log", ResumePoint("q", -1, cut)), newest(folder / "log", cut), last)
    for shard in (one, other):
        if not is_staged:
            shard.begin(last)
            shard.stage(last, Changes.of("op/0", {b"a": b"again"}))
        shard.begin(last + 1)
    keys = [b"a", b"b", b"c"]
    assert other.fetch(keys) == one.fetch(keys)
    assert other.position == one.position == last
    one.destroy()
    other.destroy()
