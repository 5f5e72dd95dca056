"""Messages of state hosts, and the classes of their answers."""

from __future__ import annotations

from types import NoneType

from chandy.state.rpc.messages import Ack, AskBatch, BatchAnswer, ClaimAnswer, ClaimShards, reply_of
from chandy.storage.codec import from_json, to_json


def test_a_message_names_the_class_of_its_answer() -> None:
    assert reply_of(AskBatch) is BatchAnswer
    assert reply_of(ClaimShards) is ClaimAnswer
    assert reply_of(Ack) is NoneType


def test_no_answer_is_an_answer_on_the_wire() -> None:
    assert from_json(reply_of(Ack), to_json(None)) is None
