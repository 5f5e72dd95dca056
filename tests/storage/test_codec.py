"""JSON of values: what other packages send and what manifests are made of."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chandy.state.rpc import messages, orders
from chandy.storage.checkpoints.fencing import Claim, Generation
from chandy.storage.checkpoints.manifest import FileRef, Handle, Manifest
from chandy.storage.codec import from_json, from_json_of_any_version, to_json, to_sealed_json
from chandy.storage.errors import CodecError, UnfitError

from ..effort import examples


def values(type_: Any, least: int | None = None) -> st.SearchStrategy[Any]:
    """Return a strategy for all values of a type as our classes declare them.

    Args:
        type_: the type.
        least: the smallest whole number, of a field whose texts are names; None: there is none, and texts are any.
    """
    # An id has a type of its own, see ``NewType``.
    type_ = getattr(type_, "__supertype__", type_)
    origin, args = typing.get_origin(type_), typing.get_args(type_)
    if attrs.has(type_):
        hints = typing.get_type_hints(type_)
        fields = attrs.fields(type_)
        # Those that are checked are counts or names.
        least_of = {field.name: None if field.validator is None else 0 for field in fields}
        return st.builds(type_, **{name: values(hints[name], least) for name, least in least_of.items()})
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1], least), max_size=3)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(arg, least) for arg in args])
    if isinstance(type_, type) and issubclass(type_, enum.Enum):
        return st.sampled_from(type_)
    simple = {
        int: st.integers(least),
        str: st.text() if least is None else st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return simple[type_]


MESSAGES = [
    value
    for module in (messages, orders)
    for value in vars(module).values()
    if attrs.has(value) and value.__module__ == module.__name__
]


def test_there_are_messages_to_test() -> None:
    assert orders.SnapshotOrder in MESSAGES
    assert messages.ClaimAnswer in MESSAGES


@pytest.mark.parametrize("type_", [*MESSAGES, Manifest, Claim, Generation], ids=lambda type_: type_.__name__)
def test_a_value_comes_back_equal(type_: type) -> None:
    @settings(max_examples=examples(6))
    @given(values(type_))
    def check(value: Any) -> None:
        assert from_json(type_, to_json(value)) == value

    check()


def test_equal_values_give_equal_bytes_whatever_the_order_of_their_keys() -> None:
    forward = messages.ClaimAnswer(elsewhere={1: "a", 2: "b"})
    backward = messages.ClaimAnswer(elsewhere={2: "b", 1: "a"})
    assert to_json(forward) == to_json(backward)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"name":"a","key":"k","size":1,"sha256":"s","extra":1}', "extra"),
        (b'{"name":"a","key":"k","sha256":"s"}', "size"),
        (b'{"name":"a","key":"k","size":"1","sha256":"s"}', "size"),
        (b'{"name":"a","key":"k","size":1.5,"sha256":"s"}', "size"),
        (b'{"name":"a","key":"k","size":true,"sha256":"s"}', "size"),
        (b'{"name":7,"key":"k","size":1,"sha256":"s"}', "name"),
        (b'{"name":', "Expecting value"),
        (b"\x80", "decode"),
        (b"[]", "mapping|dict|list"),
        (b"", "Expecting value"),
    ],
)
def test_anything_but_the_exact_value_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason) as caught:
        from_json(FileRef, data)
    assert caught.value.type == "FileRef"


def test_defaults_may_be_left_out() -> None:
    assert from_json(Handle, b"{}") == Handle()


@settings(max_examples=examples(80))
@given(start=values(Generation, 0), at=st.integers(0, 10**6), change=st.integers(1, 255))
def test_a_sealed_record_is_read_as_it_was_written_or_not_at_all(
    start: Generation, at: int, change: int
) -> None:
    sealed = to_sealed_json(start)
    assert from_json_of_any_version(Generation, sealed) == start
    # Earlier versions have written no seal.
    assert from_json_of_any_version(Generation, to_json(start)) == start
    at %= len(sealed)
    try:
        found = from_json_of_any_version(
            Generation, sealed[:at] + bytes([sealed[at] ^ change]) + sealed[at + 1 :]
        )
    except (CodecError, UnfitError):
        return
    assert found == start
