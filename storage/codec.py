"""JSON of attrs classes: one strict converter for all that Chandy stores and sends."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_args, get_origin

import attrs
import cattrs
from cattrs.preconf.json import make_converter

from .errors import CodecError, UnfitError

T = TypeVar("T")

_SEAL: Final = "sha256"


def to_json(value: object) -> bytes:
    """Return the value as canonical JSON (ASCII, sorted keys, no spaces): equal values give equal bytes."""
    return canonical(plain(value))


def to_sealed_json(value: object) -> bytes:
    """Return the value as ``to_json`` has it, with the SHA-256 of that beside its fields; see ``check_seal``."""
    document = plain(value)
    return canonical({**document, _SEAL: _sha256(document)})


def check_seal(document: dict[str, Any]) -> None:
    """Check a document of ``to_sealed_json`` by its SHA-256. One without was written before there was any.

    Raises:
        UnfitError: it was written otherwise.
    """
    said = document.get(_SEAL)
    found = _sha256({name: value for name, value in document.items() if name != _SEAL})
    if said not in (None, found):
        raise UnfitError(f"SHA-256 {said}", f"SHA-256 {found}")


def _sha256(document: object) -> str:
    return hashlib.sha256(canonical(document)).hexdigest()


def plain(value: object) -> Any:
    """Return the value as plain JSON data."""
    return _CONVERTER.unstructure(value)


def from_json(type_: type[T], data: bytes) -> T:
    """Return the value of class ``type_`` that is in ``data``.

    Raises:
        CodecError: it is not JSON, or has an unknown or missing key or a value of another type.
    """
    return structure(type_, parse(type_.__name__, data))


def from_json_of_any_version(type_: type[T], data: bytes) -> T:
    """Like ``from_json``, but ignore keys that the class does not have: a newer version may have added them.

    Raises:
        CodecError: as ``from_json``.
        UnfitError: the document has a SHA-256, and it is that of another one.
    """
    document = parse(type_.__name__, data)
    if isinstance(document, dict):
        # mypy does not know that the class is one of attrs'.
        known = attrs.fields_dict(type_)  # type: ignore[arg-type]
        check_seal(document)
        document = {name: value for name, value in document.items() if name in known}
    return structure(type_, document)


def canonical(document: object) -> bytes:
    """Return plain JSON data as canonical JSON."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")


def parse(name: str, data: bytes) -> Any:
    """Return the plain JSON data in ``data``. ``name`` says what it should be, for the error.

    Raises:
        CodecError: it is not JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(name, str(error)) from None


def structure(type_: type[T], document: object) -> T:
    """Return the value of class ``type_`` that plain JSON data describes.

    Raises:
        CodecError: it has an unknown or missing key, or a value of another type.
    """
    try:
        return _CONVERTER.structure(document, type_)
    except Exception:  # noqa: BLE001 (cattrs passes on whatever a constructor raises)
        # Keeping track of the path to each value takes half as long again, so it is done only after an error.
        return _explained(type_, document)


def _explained(type_: type[T], document: object) -> T:
    try:
        return _explaining().structure(document, type_)
    except Exception as error:
        # cattrs passes on whatever a constructor raises, so no narrower class covers it.
        reason = "; ".join(cattrs.transform_error(error)) if isinstance(error, Exception) else str(error)
        raise CodecError(type_.__name__, reason) from error


def _exactly(*types: type) -> Callable[[Any, Any], Any]:
    """Return a hook that accepts only values of these types. cattrs would call ``int("7")``."""

    def check(value: Any, target: Any) -> Any:
        if type(value) is target:
            return value
        if type(value) not in types:
            raise TypeError(f"expected {target.__name__}, found {value!r}")
        return target(value)

    return check


def _has_int_keys(type_: Any) -> bool:
    if get_origin(type_) is not dict:
        return False
    key = get_args(type_)[0]
    # An id has a type of its own, see ``NewType``.
    return getattr(key, "__supertype__", key) is int


def _make_converter(*, explaining: bool) -> cattrs.Converter:
    converter = make_converter(forbid_extra_keys=True, detailed_validation=explaining)
    for type_ in (int, str, bool, type(None)):
        converter.register_structure_hook(type_, _exactly(type_))
    converter.register_structure_hook(float, _exactly(float, int))

    @converter.register_structure_hook_factory(_has_int_keys)
    def int_keys(type_: Any) -> Callable[[Any, Any], dict[int, Any]]:
        value_type = get_args(type_)[1]

        # A key of a JSON object is always a string.
        def hook(document: Any, _: Any) -> dict[int, Any]:
            return {int(key): converter.structure(value, value_type) for key, value in document.items()}

        return hook

    return converter


@functools.cache
def _explaining() -> cattrs.Converter:
    return _make_converter(explaining=True)


_CONVERTER = _make_converter(explaining=False)
