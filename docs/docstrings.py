"""The texts below the attributes of a class, which Python itself does not keep."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the text below each field of a class, or each member of an enumeration."""
    (definition,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    return dict(_documented(definition.body))


def markdown(text: str) -> str:
    """Return a docstring as Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for attribute, text in pairwise(body):
        match attribute, text:
            case (
                ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]),
                ast.Expr(ast.Constant(str(found))),
            ):
                yield name, inspect.cleandoc(found)
