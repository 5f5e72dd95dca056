"""What the fields of configuration classes are checked with: attrs validators that name the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import attrs

from .durations import Duration, seconds
from .errors import ConfigError, DurationError

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]
"""How attrs calls a validator: with the instance, the field and the value."""


def refuse(owner: object, field: str, found: object, expected: str) -> NoReturn:
    """Say that a field's value cannot be used.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(f"{type(owner).__name__}.{field}", repr(found), expected)


def duration(owner: object, field: attrs.Attribute[Any], value: Duration) -> None:
    """A duration, 0 or more."""
    try:
        seconds(value)
    except DurationError as error:
        expected = 'a duration of 0 or more such as "10 s", "5 minutes" or a timedelta'
        raise ConfigError(f"{type(owner).__name__}.{field.name}", error.found, expected) from error


def positive_duration(owner: object, field: attrs.Attribute[Any], value: Duration) -> None:
    """A duration above 0."""
    duration(owner, field, value)
    if seconds(value) == 0:
        refuse(owner, field.name, value, "a duration above 0")


def whole(at_least: int) -> Validator:
    """A whole number that is not too small."""

    def check(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        # True and False are ints to isinstance.
        if type(value) is not int or value < at_least:
            refuse(owner, field.name, value, f"a whole number of at least {at_least}")

    return check


def number(at_least: float, at_most: float) -> Validator:
    """A number within bounds, both included."""

    def check(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        if type(value) not in (int, float) or not at_least <= value <= at_most:  # type: ignore[operator]
            refuse(owner, field.name, value, f"a number from {at_least} to {at_most}")

    return check


def instance(*classes: type) -> Validator:
    """An instance of one of the classes."""

    def check(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, classes):
            refuse(owner, field.name, value, " or ".join(one.__name__ for one in classes))

    return check


def filled(owner: object, field: attrs.Attribute[Any], value: object) -> None:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        refuse(owner, field.name, value, "a text that is not empty")


def optional(check: Validator) -> Validator:
    """None, or what the validator accepts."""

    def check_if_given(owner: object, field: attrs.Attribute[Any], value: object) -> None:
        if value is not None:
            check(owner, field, value)

    return check_if_given
