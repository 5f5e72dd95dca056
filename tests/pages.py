"""The pages that users read, and the code on them.

Code stands in fenced blocks. A block of Python that readers need not see stands in a comment that begins with
``<!-- python``. Blocks may be indented, as in a list.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
PAGES: Final = (
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)

_BLOCK: Final = re.compile(
    r"^(?P<indent> *)"
    r"(?:```(?P<language>\w*)\n(?P<shown>.*?)^(?P=indent)```|<!-- python\n(?P<hidden>.*?)^(?P=indent)-->)$",
    re.DOTALL | re.MULTILINE,
)
_EXIT_CODE: Final = re.compile(r"# exit code (\d+)$")


@attrs.frozen
class Block:
    """Some code on a page."""

    page: Path
    line: int
    """Line of the page before the first line of code."""
    language: str
    code: str


@attrs.frozen
class Command:
    """A line for the shell."""

    words: tuple[str, ...]
    exit_code: int
    """What the page says that it ends with; 0 unless it says ``# exit code N``."""


def blocks(page: Path) -> list[Block]:
    """Return the code on a page, in order."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["language"] if found["hidden"] is None else "python",
            textwrap.dedent(found["shown"] if found["hidden"] is None else found["hidden"]),
        )
        for found in _BLOCK.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """Return the commands of a block for the shell."""
    found = []
    for line in block.code.splitlines():
        code = _EXIT_CODE.search(line)
        words = tuple(line.partition("#")[0].split())
        found.append(Command(words, int(code[1]) if code else 0))
    return [command for command in found if command.words]
