"""The permit that an error prints, as its user would copy it."""

from __future__ import annotations

import ast

from chandy import Permit


def printed(error: BaseException | str) -> Permit:
    """Return the permit that an error says to pass.

    Raises:
        ValueError: it prints none that could be copied.
    """
    source = str(error).partition("permit=")[2]
    for end in [at + 1 for at, letter in enumerate(source) if letter == ")"]:
        try:
            call = ast.parse(source[:end], mode="eval").body
        except SyntaxError:
            continue
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Permit"
        return Permit(**{one.arg or "": ast.literal_eval(one.value) for one in call.keywords})
    raise ValueError(f"no permit in {error}")
