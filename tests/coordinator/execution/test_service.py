"""Where the coordinator listens."""

from __future__ import annotations

from typing import Any

import pytest

from chandy.coordinator.errors import SetupError
from chandy.coordinator.execution.service import listen
from chandy.state.errors import RemoteError
from chandy.state.rpc.calls import ActionClient
from chandy.state.rpc.messages import AskBatch, BatchAnswer


class Checkpoints:
    """``CheckpointExecutor`` that answers every batch."""

    def __getattr__(self, name: str) -> Any:
        return lambda request: BatchAnswer()


@pytest.mark.parametrize("host", ["nobody.invalid", "203.0.113.7", "no host", ""])
def test_a_host_that_is_not_this_machine_is_named_with_what_to_do(host: str) -> None:
    with pytest.raises(SetupError, match=r"set spark\.driver\.host to") as caught:
        listen(host, "token", "p")
    assert repr(host) in caught.value.expected


def test_calls_are_answered_as_soon_as_there_is_something_to_answer_them_with() -> None:
    checkpoints: Any = Checkpoints()
    service = listen("127.0.0.1", "token", "p")
    client = ActionClient(service.address, "token")
    ask = AskBatch("host", "q", 0)
    with pytest.raises(RemoteError, match="found 'ask'"):
        client.call("ask", ask, BatchAnswer)
    service.answer(checkpoints)
    assert client.call("ask", ask, BatchAnswer) == BatchAnswer()
    client.close()
    service.shutdown()
