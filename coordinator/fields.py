"""Validators for the fields of configuration classes: attrs validators whose errors name the field."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

import attrs

from ..state.rpc.addresses import PortRange
from ..storage.sizes import size_in_bytes
from .durations import Duration, seconds
from .errors import ConfigError

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]
"""How attrs calls a validator: with the instance, the field and the value."""


C = TypeVar("C")


def known(owner: type[C]) -> type[C]:
    """Have a class of attrs' name the field that is like one which it does not have."""
    right = owner.__init__
    names = [field.name for field in attrs.fields(owner)]  # type: ignore[arg-type]

    @functools.wraps(right)
    def told(made: C, *positional: Any, **given: Any) -> None:
        if unknown := [name for name in given if name not in names]:
            like = difflib.get_close_matches(unknown[0], names, 1) or names
            what = f"{owner.__name__} has no field {unknown[0]!r}"
            raise ConfigError(what, " or ".join(like), unknown[0])
        right(made, *positional, **given)

    owner.__init__ = told  # type: ignore[assignment]
    return owner


def refuse(owner: object, field: str, found: object, expected: str) -> NoReturn:
    """Refuse the value of a field.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(_what(owner, field), expected, repr(found))


def duration(owner: object, field: attrs.Attribute[Any], value: Duration) -> None:
    """Accept a duration of 0 or more."""
    try:
        seconds(value)
    except ConfigError as error:
        raise ConfigError(_what(owner, field.name), error.expected, error.found) from None


def positive_duration(owner: object, field: attrs.Attribute[Any], value: Duration) -> None:
    """Accept a duration above 0."""
    duration(owner, field, value)
    if seconds(value) == 0:
        refuse(owner, field.name, value, "a duration above 0")


def no_shorter_than(other: str) -> Validator:
    """Return a validator that accepts durations from that of another field on, which comes before this one."""

    def check(owner: object, field: attrs.Attribute[Any], value: Duration) -> None:
        duration(owner, field, value)
        least: Duration | None = getattr(owner, other)
        if least is None:
            refuse(owner, field.name, value, f"None, as {other} is None")
        if seconds(value) < seconds(least):
            refuse(owner, field.name, value, f"a duration no shorter than {other}, {least!r}")

    return check


def function(owner: object, field: attrs.Attribute[Any], value: object) -> None:
    """Accept what can be called."""
    if not callable(value):
        refuse(owner, field.name, value, "a function")


def whole(at_least: int, at_most: int | None = None) -> Validator:
    """Return a validator that accepts integers from ``at_least`` on, up to ``at_most``."""
    expected = f"an integer of at least {at_least}" + ("" if at_most is None else f" and at most {at_most}")

    def check(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        # isinstance would accept True and False.
        if type(value) is not int or value < at_least or (at_most is not None and value > at_most):
            refuse(owner, field.name, value, expected)

    return check


def size(at_least: int) -> Validator:
    """Return a validator that accepts sizes in bytes from ``at_least`` on: integers, or texts such as ``"1g"``."""

    def check(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        try:
            accepted = type(value) in (int, str) and in_bytes(value) >= at_least  # type: ignore[arg-type]
        except ValueError:
            accepted = False
        if not accepted:
            expected = f"at least {at_least >> 20}m, as text with a unit or as a number of bytes"
            refuse(owner, field.name, value, f'{expected}, such as "512m", "1g" or {1 << 29}')

    return check


def in_bytes(size: int | str) -> int:
    """Return a size in bytes, given as an integer or as text with a unit."""
    return size_in_bytes(size) if isinstance(size, str) else size


def number(at_least: float, at_most: float) -> Validator:
    """Return a validator that accepts numbers within bounds, both included."""

    def check(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        if type(value) not in (int, float) or not at_least <= value <= at_most:  # type: ignore[operator]
            refuse(owner, field.name, value, f"a number from {at_least} to {at_most}")

    return check


def instance(of: type) -> Validator:
    """Return a validator that accepts instances of a class."""

    def check(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, of):
            refuse(owner, field.name, value, f"a value of type {of.__name__}")

    return check


def settings(of: str, reserved: Collection[str]) -> Validator:
    """Return a validator that accepts a client's settings, except those that the owner makes itself.

    Args:
        of: whose settings they are.
        reserved: the names of those that it makes itself.
    """

    def check(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, Mapping):
            refuse(owner, field.name, type(value).__name__, f"a dict of settings of {of}")
        # Their values may be secret.
        if taken := sorted(set(reserved) & set(value)):
            raise ConfigError(
                _what(owner, field.name),
                f"settings that {type(owner).__name__} does not make itself",
                ", ".join(taken),
                "leave them out",
            )

    return check


def filled(owner: object, field: attrs.Attribute[Any], value: object) -> None:
    """Accept a string that is not blank."""
    if not isinstance(value, str) or not value.strip():
        refuse(owner, field.name, value, "a string that is not empty")


def token(owner: object, field: attrs.Attribute[Any], value: object) -> None:
    """Accept a text that a request can carry in a header: printable, and without blanks at its ends."""
    if not isinstance(value, str) or not value:
        found = f"a {type(value).__name__}" if not isinstance(value, str) else "an empty one"
    elif value != value.strip():
        found = "one that begins or ends with a blank or a new line, as a file's text does"
    elif not value.isprintable():
        found = "one with characters that cannot be printed"
    else:
        return
    # The value is secret.
    raise ConfigError(
        _what(owner, field.name), "a text that a request can carry in a header", found, "use token.strip()"
    )


def ports(owner: object, field: attrs.Attribute[Any], value: object) -> None:
    """Accept a range of ports, as ``port_range`` reads it."""
    try:
        found = port_range(value) if isinstance(value, str) else PortRange(0, 0)
    except ValueError:
        found = PortRange(0, 0)
    if not 1024 <= found.first <= found.last <= 65535:
        refuse(
            owner,
            field.name,
            value,
            'the first and the last of ports from 1024 to 65535, such as "40000-40099"',
        )


def port_range(text: str) -> PortRange:
    """Read a range of ports such as ``"40000-40099"``.

    Raises:
        ValueError: it is none.
    """
    first, last = text.split("-")
    return PortRange(int(first), int(last))


def optional(check: Validator) -> Validator:
    """Return a validator that accepts None, and what ``check`` accepts."""

    def check_if_given(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        if value is not None:
            check(owner, field, value)

    return check_if_given


def _what(owner: object, field: str) -> str:
    return f"invalid {type(owner).__name__}.{field}"
