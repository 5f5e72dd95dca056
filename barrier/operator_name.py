"""How an operator is found in a Spark plan: by the name of the Python function that runs it."""

from __future__ import annotations

_PREFIX = "chandy_operator_"


def function_name(uid: str) -> str:
    """Return the name that an operator's function has in a Spark plan: an identifier, whatever the uid."""
    return _PREFIX + uid.encode().hex()


def operator_uid(name: str) -> str | None:
    """Return the operator whose function has this name in a Spark plan, None if it is no operator's."""
    if not name.startswith(_PREFIX):
        return None
    try:
        return bytes.fromhex(name.removeprefix(_PREFIX)).decode()
    except ValueError:
        return None
