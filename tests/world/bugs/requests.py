"""Bugs in what users ask of a running pipeline."""

from __future__ import annotations

from typing import Final

from .bug import tests, text

_ADMISSION, _EMPTYING = "coordinator.protocol.admission:Admission", "coordinator.protocol.emptying:Emptying"
_BY_QUEUE = tests("tests/coordinator/protocol/test_requests.py")
_BY_EMPTYING = tests("tests/coordinator/protocol/test_emptying.py")

REQUESTS: Final = (
    text(
        "a user's request that waits gives way to a later one",
        "coordinator.protocol.requests:RequestQueue.admit",
        " and not any(one.is_periodic for one in self._waiting)",
        " and False",
        by=_BY_QUEUE,
    ),
    text(
        "a request that waits does not end with the pipeline",
        f"{_ADMISSION}.close",
        "self.queue.clear()",
        "()",
        by=tests("tests/coordinator/execution/test_executor.py"),
    ),
    text(
        "a request waits for a place for ever",
        f"{_ADMISSION}._waits_until",
        "max(request.created_at, self._moved_at)",
        "1e12",
        by=tests("tests/coordinator/protocol/test_state_machine.py"),
    ),
    text(
        "a drain uses up the failures that the pipeline tolerates",
        f"{_ADMISSION}.reject",
        " and not request.for_moves",
        "",
        by=_BY_EMPTYING,
    ),
    text(
        "a stop waits until targets have taken the output of queries",
        "coordinator.protocol.requests:startable",
        " and not request.is_final",
        "",
        by=_BY_QUEUE,
    ),
    text(
        "two checkpoints are planned at once",
        "coordinator.protocol.requests:startable",
        "request is None or triggering or",
        "request is None or",
        by=tests("tests/coordinator/protocol/test_state_machine.py"),
    ),
    text(
        "a drain does not wait for shards",
        "coordinator.protocol.placement:Placement.is_empty",
        "return not self.shards_on(machine)",
        "return True",
    ),
    text(
        "a machine is empty while a host that nobody knows may have its shards",
        "coordinator.protocol.whereabouts:PlacedShard.may_be_on",
        "in (machine, None)",
        "== machine",
        by=_BY_EMPTYING,
    ),
    text(
        "a machine is empty while shards wait for its next host",
        "coordinator.protocol.whereabouts:_replaced",
        "else reopenings.machine_of(one)",
        'else "nowhere"',
        by=tests("tests/coordinator/protocol/test_emptying.py"),
    ),
    text(
        "a drain goes on after the pipeline's end",
        f"{_EMPTYING}.end",
        "(closed := self.admission.life.why_over)",
        "(closed := None)",
        by=_BY_EMPTYING,
    ),
    text("a drain has no deadline", f"{_EMPTYING}.end", "now >= request.deadline", "False", by=_BY_EMPTYING),
    text(
        "a drain asks a store in trouble again and again",
        f"{_EMPTYING}._not_before",
        "asked.created_at + RETRY_SECONDS",
        "asked.created_at",
        by=_BY_EMPTYING,
    ),
    text(
        "a machine is said to be drained when its time is up",
        f"{_EMPTYING}.end",
        "self.placement.is_empty(machine)",
        "self.placement.is_empty(machine) or now >= request.deadline",
        by=tests("tests/coordinator/protocol/test_emptying.py"),
    ),
    text(
        "nobody hears that a query was not rescaled, because the pipeline has ended",
        "coordinator.protocol.rescaling:Rescalings.fail",
        "self._of(None)",
        "()",
        by=tests("tests/coordinator/protocol/test_decisions.py"),
    ),
)
