"""Writes ``docs/configuration.md`` from the code: ``python -m docs.configuration``, or ``make docs``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Final

import attrs

from chandy.coordinator import CheckpointConfig, ExponentialBackoff, FixedDelay, NoRestart
from chandy.coordinator.errors import ChandyError

from .docstrings import attribute_docstrings, markdown

PAGE: Final = Path(__file__).with_name("configuration.md")
CLASSES: Final = (CheckpointConfig, ExponentialBackoff, FixedDelay, NoRestart)

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

Fields of a `CheckpointConfig` are given by name. All fields are checked at once. A value that cannot be used is
an error that names the field, what was expected and what was found.

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
    for field in attrs.fields(cls):
        parts += [f"### {cls.__name__}.{field.name}", _facts(cls, field), markdown(descriptions[field.name])]
    return "\n\n".join(parts) + "\n"


def _facts(cls: type, field: attrs.Attribute[Any]) -> str:
    facts = [f"Type: `{field.type}`", f"default: `{_default(field)}`"]
    if (expected := _expected(cls, field.name)) is not None:
        facts.append(f"must be {'None or ' if 'None' in str(field.type) else ''}{expected}")
    return "; ".join(facts) + "."


def _default(field: attrs.Attribute[Any]) -> str:
    if (factory := getattr(field.default, "factory", None)) is not None:
        return f"{factory.__name__}()"
    return repr(field.default).replace("'", '"')


def _expected(cls: type, name: str) -> str | None:
    """Return what a field expects, as its own error says it; None for a type that says enough."""
    # The first is a duration that only some fields refuse, the second is refused by all.
    for value in ("0 s", object()):
        try:
            cls(**{name: value})
        except ChandyError as error:
            expected, _, _ = str(error.expected).partition(" such as ")  # type: ignore[attr-defined]
            return expected.rstrip(",") if " " in expected else None
    raise AssertionError(f"{cls.__name__}.{name} takes anything")


def _without_raises(text: str) -> str:
    return text.partition("\nRaises:")[0].strip()


if __name__ == "__main__":
    PAGE.write_text(page())
