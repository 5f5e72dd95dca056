"""The name of an operator's Python function, by which the operator is found in a Spark plan."""

from __future__ import annotations

_PREFIX = "chandy_operator_"


def function_name(uid: str) -> str:
    """Return the name of an operator's function in a Spark plan: an identifier, whatever the uid is."""
    return _PREFIX + uid.encode().hex()


def operator_uid(name: str) -> str | None:
    """Return the uid of the operator whose function has this name, None if the function is no operator's."""
    if not name.startswith(_PREFIX):
        return None
    try:
        return bytes.fromhex(name.removeprefix(_PREFIX)).decode()
    except ValueError:
        return None
