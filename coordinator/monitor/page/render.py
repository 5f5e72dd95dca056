"""Makes HTML of what a page says. All text is escaped, and a browser runs and loads nothing but what is in the page."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined

from ....storage.times import to_the_second, utc
from ...version import __version__
from .checkpoints import CheckpointPage
from .listing import StoragePage
from .view import OverviewPage
from .words import WORDS, look

ShownPage = OverviewPage | CheckpointPage | StoragePage
REFRESH_SECONDS: Final = 5
"""How often a page that is open is loaded again."""
_TEMPLATES: Final = {
    OverviewPage: "overview.html",
    CheckpointPage: "checkpoint.html",
    StoragePage: "storage.html",
}


def html(page: ShownPage, base: str = "") -> str:
    """Return a page as HTML.

    Args:
        page: what it says.
        base: path of the pipeline's pages on its server, without a slash at its end.
    """
    return _environment().get_template(_TEMPLATES[type(page)]).render(page=page, base=base)


@cache
def headers() -> dict[str, str]:
    """Return the headers with which pages are sent."""
    policy = (
        "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"style-src '{_digest('style.css')}'; script-src '{_digest('page.js')}'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"utc": to_the_second, "iso": lambda at: f"{utc(at):%Y-%m-%dT%H:%M:%SZ}"}
    environment.globals |= {
        "style": _source("style.css"),
        "script": _source("page.js"),
        "version": __version__,
        "seconds": REFRESH_SECONDS,
        "words": WORDS,
        "look": look,
    }
    return environment


@cache
def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8").strip()


def _digest(name: str) -> str:
    """Return the digest by which a browser knows the style or the script of a page."""
    return f"sha256-{base64.b64encode(hashlib.sha256(_source(name).encode()).digest()).decode()}"
