"""A machine whose hosts are lost in the middle of batches; some live on without knowing it, and connections break."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from chandy.storage.errors import ChandyError

from .lives import QUERY, SMALL, Attempt, Life, shards_of
from .moving_machine import EXECUTOR, MovingMachine


def lose(life: Life, executor: str, lives_on: bool) -> str | None:
    """Have the coordinator lose the host of a machine; return its name."""
    for name in [name for name in life.hosts if name[0] == executor]:
        host = life.hosts.pop(name)
        if lives_on:
            life.zombies[name] = host
            host.mailbox.clear()
        life.lose(name)
        return name
    return None


class LosingMachine(MovingMachine):
    """Whatever can happen when hosts are lost, among whatever can happen."""

    @rule(
        executor=EXECUTOR,
        query=QUERY,
        upto=st.integers(0, 4),
        lives_on=st.booleans(),
        before=st.sampled_from([0, 2, 6]),
        rounds=st.integers(0, 2),
        hold=st.sampled_from(["", "moves", "orders"]),
    )
    def a_host_is_lost_in_a_batch(
        self, executor: str, query: str, upto: int, lives_on: bool, before: int, rounds: int, hold: str
    ) -> None:
        life = self.world.life
        self.busy("", before)
        if len(life.hosts) < 2 or life.lost:
            return
        life.batch(query, 3, 0, upto)
        lose(life, executor, lives_on)
        self.look()
        life.quiet(hold)
        finish(life, query)
        self.busy("", rounds)

    @rule(one=EXECUTOR, other=st.sampled_from(["a", "b", "c", "coordinator"]), heals=st.booleans())
    def a_connection_breaks(self, one: str, other: str, heals: bool) -> None:
        life = self.world.life
        if heals:
            life.cut.clear()
            return
        for name in [*life.hosts, *life.zombies]:
            if name[0] == one:
                others = [peer for peer in [*life.hosts, *life.zombies] if peer[0] == other]
                life.cut |= {(name, peer) for peer in [*others, *([other] if other == "coordinator" else [])]}

    @rule(number=SMALL, query=QUERY, steps=st.integers(0, 2))
    def a_task_of_a_lost_host_goes_on(self, number: int, query: str, steps: int) -> None:
        life = self.world.life
        if not life.zombies or life.lost:
            return
        zombie = life.zombies[sorted(life.zombies)[number % len(life.zombies)]]
        for attempt in zombie_attempts(life, zombie.name, query)[: steps + 1]:
            life.apply(attempt)

    def look(self) -> None:
        """Look at the standbys when a host has just been lost."""

    def teardown(self) -> None:
        # A host that can tell neither its standby nor the driver anything is lost in time.
        if hasattr(self, "world"):
            self.world.life.cut.clear()
        super().teardown()


def zombie_attempts(life: Life, name: str, query: str) -> list[Attempt]:
    """Return what tasks of the running batch can begin on a host that the coordinator has lost."""
    run, zombie = life.runs[query], life.zombies[name]
    if run.planned == run.committed:
        return []
    found = []
    for shard in shards_of(query):
        if (run.query_id, shard) in zombie.shards:
            try:
                zombie.begin(run.query_id, run.planned, shard)
            except ChandyError:
                continue
            found.append(Attempt(run, run.planned, ((zombie, shard),)))
    return found


def begun(life: Life, query: str, name: str) -> list[Attempt]:
    """Begin the tasks of the running batch on a host that have not succeeded; they go on later."""
    run = life.runs[query]
    if run.planned == run.committed:
        return []
    attempts = [life.begin(run, (shard,), 0) for shard in shards_of(query) if shard not in run.done]
    return [one for one in attempts if one is not None and one.held[0][0].name == name]


def finish(life: Life, query: str) -> None:
    """Run the tasks of the running batch of which Spark has not heard yet, and commit it if all have succeeded."""
    run = life.runs[query]
    if run.stands or life.lost or run.planned == run.committed:
        return
    for number, shard in enumerate(shards_of(query)):
        if shard not in run.done and (attempt := life.begin(run, (shard,), number)):
            life.apply(attempt)
    life.sink(run)
    if run.sunk == run.planned:
        run.committed = run.planned
