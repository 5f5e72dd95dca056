"""Makes HTML of what a page says. All text is escaped, and a browser runs and loads nothing but what is in the page."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined

from ...version import __version__
from .view import CheckpointPage, OverviewPage

REFRESH_SECONDS: Final = 5
"""How often a page that is open is loaded again."""


def html(page: OverviewPage | CheckpointPage) -> str:
    """Return a page as HTML."""
    name = "overview.html" if isinstance(page, OverviewPage) else "checkpoint.html"
    return _environment().get_template(name).render(page=page)


@cache
def headers() -> dict[str, str]:
    """Return the headers with which pages are sent."""
    policy = (
        "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        f"style-src '{_digest('style.css')}'; script-src '{_digest('refresh.js')}'"
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
    environment.globals |= {
        "style": _source("style.css"),
        "script": _source("refresh.js"),
        "version": __version__,
        "seconds": REFRESH_SECONDS,
    }
    return environment


@cache
def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8").strip()


def _digest(name: str) -> str:
    """Return the digest by which a browser knows the style or the script of a page."""
    return f"sha256-{base64.b64encode(hashlib.sha256(_source(name).encode()).digest()).decode()}"
