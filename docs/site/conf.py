"""Sphinx's settings of the site: the pages as they are, and a reference of the public names from their docstrings.

The sources are those of the whole project, so that links between pages hold as they do on a page of the repository.
"""

from __future__ import annotations

from typing import Any, Final

from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring

from chandy import __version__

project = "Chandy"
author = "The authors of Chandy"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "benchmarks/results/**", "examples/**"]
exclude_patterns = ["docs/**/__pycache__", ".*", "build"]
html_theme = "furo"
html_title = f"Chandy {version}"
html_copy_source = False
# Anchors as GitHub makes them, which is what links between the pages name.
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}

CONTENTS: Final = """

```{toctree}
:hidden:
:caption: Use
examples/README
docs/keyed-state
docs/testing
docs/aggregate-batches
docs/writing-state
docs/sinks
docs/publish-each-batch
docs/replication
docs/kafka
```
```{toctree}
:hidden:
:caption: Run
docs/guarantees-and-recovery
docs/operations
docs/deploy
docs/cluster
docs/standby
docs/storage
docs/adopt
docs/export
SECURITY
```
```{toctree}
:hidden:
:caption: Look up
docs/site/reference
docs/configuration
docs/compatibility
docs/benchmarks
docs/comparison
docs/design
docs/internals
CONTRIBUTING
CHANGELOG
```
"""
"""The site's contents, at the end of README.md, which is its first page."""


def with_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the contents to the first page."""
    if page == root_doc:
        source[0] += CONTENTS


def as_sections(
    app: Sphinx, what: Any, name: str, documented: object, options: object, lines: list[str]
) -> None:
    """Turn sections such as ``Args:`` into fields. Docstrings of attributes have none, and colons of their own."""
    if what not in ("attribute", "data"):
        # Napoleon would take the text before the first colon of a property for its type.
        kind: Any = "method" if what == "property" else what
        lines[:] = GoogleDocstring(lines, what=kind, name=name, obj=documented).lines()


def setup(app: Sphinx) -> None:
    """Register what this module adds to Sphinx."""
    app.connect("source-read", with_contents)
    app.connect("autodoc-process-docstring", as_sections)
