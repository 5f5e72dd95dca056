"""Writes ``docs/configuration.md`` from the code: ``python -m docs.configuration``, or ``make docs``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, Final

import attrs

from chandy.coordinator import (
    CheckpointConfig,
    ExponentialBackoff,
    FixedDelay,
    NoRestart,
    Page,
    Permit,
    Savepoints,
)

from .docstrings import attribute_docstrings, markdown

PAGE: Final = Path(__file__).with_name("configuration.md")
CLASSES: Final = (CheckpointConfig, Savepoints, Page, ExponentialBackoff, FixedDelay, NoRestart, Permit)

HEAD: Final = """\
<!-- Written by `make docs` from the code. Do not edit. -->

# Configuration

Pass a `CheckpointConfig` to the coordinator, and a restart strategy to the `CheckpointConfig`:

```python
from chandy import CheckpointConfig, ExponentialBackoff

config = CheckpointConfig(
    interval="30 s", retained=5, restart=ExponentialBackoff(maximum="5 min", attempts=None)
)
```

Fields are given by name and checked at once. A value that cannot be used is an error that names the field, what was
expected and what was found. The reference of the public names, which `make site` writes, says more of each.

A **`Duration`** is text such as `"10 s"`, `"250 ms"` or `"1 hour 30 minutes"`, or a `datetime.timedelta`. The units are
those of Spark's intervals from weeks to microseconds, in full or short. Months and years are not among them.

Arguments of an operator (`shards`, `parallelism`, `time_mode`, ...) are in [Keyed state](keyed-state.md). Options of
a storage URI are in [Storage](storage.md).
"""

TAIL: Final = """\
## Environment variables

`CHANDY_RUNTIME_DIR` names the directory for sockets, working directories, files of a moment and, unless `cache_dir` is
set, caches. It must be a short path. By default it is `chandy-<uid>` in the system's temporary directory.

Of an executor on a [cluster](cluster.md): `CHANDY_ADDRESS` is where others reach it, if it cannot know that by
itself, and `CHANDY_MACHINE` the name of its machine, if its host name is that of a container.

Variables of storage backends (`AWS_...`, `HADOOP_CONF_DIR`, ...) are in [Storage](storage.md).
"""


def page() -> str:
    """Return the page as it has to be."""
    return "\n".join([HEAD, *(_section(cls) for cls in CLASSES), TAIL])


def _section(cls: type) -> str:
    parts = [f"## {cls.__name__}", markdown(_without_raises(inspect.getdoc(cls) or ""))]
    descriptions = attribute_docstrings(cls)
    if fields := attrs.fields(cls):
        rows = [f"| {_declared(field)} | {_in_short(descriptions[field.name])} |" for field in fields]
        parts.append("\n".join(["| field | what |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _declared(field: attrs.Attribute[Any]) -> str:
    """Return a field's name, type and default, as it is written in a cell of a table."""
    kind = re.sub(r"Callable\[.*\]( \| None)?$", r"Callable\1", str(field.type)).replace("|", "\\|")
    default = "" if field.default is attrs.NOTHING else f" = {_default(field)}"
    return f"`{field.name}: {kind}{default}`"


def _default(field: attrs.Attribute[Any]) -> str:
    if (factory := getattr(field.default, "factory", None)) is not None:
        return "{}" if factory is dict else f"{factory.__name__}()"
    return repr(field.default).replace("'", '"')


def _in_short(text: str) -> str:
    """Return the first paragraph of a description, and what None means."""
    first, *others = text.split("\n\n")
    meanings = re.findall(r"(?<!\S)(?:With )?None[:,] .*?\.(?=\s|$)", " ".join(others), re.DOTALL)
    return " ".join(markdown(" ".join([first, *meanings])).split())


def _without_raises(text: str) -> str:
    return text.partition("\nRaises:")[0].strip()


if __name__ == "__main__":
    PAGE.write_text(page())
