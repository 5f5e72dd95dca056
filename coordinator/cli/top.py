"""`chandy top`: what a driver tells of its pipeline, again and again, in a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import sys
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import click
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from typing_extensions import override

from ...storage.times import to_the_second
from .group import main
from .printing import cell, console, failure

_TIMEOUT: Final = 10.0
_CHECKPOINTS: Final = 8
_RECOVERIES: Final = 4
_SIGNS: Final = {"completed": "✓", "failed": "✗"}


@main.command()
@click.argument("url", metavar="URL")
@click.option(
    "--token-file",
    type=click.File(),
    metavar="FILE",
    help="File with a token of the Page. Without it, the variable CHANDY_TOKEN has the token, if any.",
)
@click.option("--ca", type=click.Path(exists=True), metavar="FILE", help="Certificates to trust, for https.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    metavar="SECONDS",
    show_default=True,
    help="How often to ask.",
)
@click.option("--once", is_flag=True, help="Print what there is now, and end.")
def top(url: str, token_file: Any, ca: str | None, every: float, once: bool) -> None:
    """Watch the pipeline of a driver that listens: CheckpointConfig(page=Page(...)).

    URL is where it does, such as http://127.0.0.1:9464. End with Ctrl-C.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise click.BadParameter(f"expected an address that begins with http:// or https://, found {url!r}")
    token = token_file.read().strip() if token_file else os.environ.get("CHANDY_TOKEN", "")
    driver = _Driver(url.rstrip("/"), token, ssl.create_default_context(cafile=ca) if ca else None)
    if once:
        console().print(Group(*_shown(driver)))
        return
    with Live(screen=sys.stdout.isatty(), auto_refresh=False) as live, contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                live.update(Group(*_shown(driver)), refresh=True)
            except click.ClickException as error:
                # It may be starting again.
                live.update(cell(f"{to_the_second(time.time())}: {error.message}", "bold red"), refresh=True)
            time.sleep(every)


class _NoRedirects(HTTPRedirectHandler):
    """Takes a redirection for an error: the token is for one address alone, and a driver redirects nobody."""

    @override
    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class _Driver:
    """The API of a driver."""

    def __init__(self, url: str, token: str, tls: ssl.SSLContext | None) -> None:
        self._url = url
        self._token = token
        self._opener = build_opener(_NoRedirects, HTTPSHandler(context=tls))

    def ask(self, path: str) -> Any:
        """Return the answer to a request.

        Raises:
            ClickException: there is none, or it is none of a pipeline that runs.
        """
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = Request(f"{self._url}/api/v1{path}", headers=headers)
        try:
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise failure(f"{self._url}: {_refusal(error)}") from error
        except (OSError, ValueError) as error:
            raise failure(f"{self._url} does not answer as a driver of Chandy: {error}") from error


def _refusal(error: HTTPError) -> str:
    text = error.read(10_000).decode(errors="replace").strip()
    if error.code == 401:
        return "a token is needed: give --token-file, or set CHANDY_TOKEN"
    if 300 <= error.code < 400:
        return f"expected the driver's own address, found one that redirects to {error.headers['Location']}"
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {text[:200]}"


def _shown(driver: _Driver) -> Iterator[RenderableType]:
    overview, checkpoints, recoveries = (driver.ask(path) for path in ("", "/checkpoints", "/recoveries"))
    now = overview["now"]
    is_ready = overview["is_ready"]
    head = cell(f"{overview['pipeline']}  ", "bold")
    head.append("✓ well" if is_ready else "✗ not well", "green" if is_ready else "red")
    head.append(f"  {to_the_second(now)}, generation {overview['generation']}", "dim")
    yield head
    for trouble in overview["troubles"]:
        yield cell(f"  {trouble}", "red")
    hosts = ", ".join(f"{name}: {count} shards" for name, count in sorted(overview["shards"].items()))
    counts = checkpoints["counts"]
    yield cell(
        f"checkpoints: {counts['completed']} completed, {counts['failed']} failed, {counts['in_progress']} in "
        f"progress, {overview['checkpoints_queued']} queued; {hosts or 'no shards yet'}"
    )
    yield _table(
        ("query", "state", "batch", "rows/s", "behind", "unpublished", "output"),
        [
            (
                name,
                query["life"] or "stored",
                str(query["committed"]),
                _rounded(query["activity"]["rows_per_second"]),
                _rounded(query["activity"]["behind"]),
                str(overview["unpublished"].get(name, {}).get("checkpoints", 0)),
                query["guarantee"],
            )
            for name, query in sorted(overview["queries"].items())
        ],
        ("batch", "rows/s", "behind", "unpublished"),
    )
    yield _table(
        ("operator", "query", "state", "largest shard"),
        [
            (uid, one["query"], decimal(one["bytes"]), decimal(one["largest_shard"]))
            for uid, one in sorted(overview["operators"].items())
        ],
        ("state", "largest shard"),
    )
    yield _table(
        ("checkpoint", "", "kind", "triggered", "seconds", "size", "new"),
        [
            (
                str(one["id"]),
                f"{_SIGNS.get(one['status'], '…')} {one['reason'] or one['status']}",
                one["kind"],
                to_the_second(one["triggered_at"]),
                _seconds(one["duration"]),
                decimal(one["size"]),
                decimal(one["new_bytes"]),
            )
            for one in checkpoints["history"][:_CHECKPOINTS]
        ],
        ("checkpoint", "seconds", "size", "new"),
    )
    yield _table(
        ("started", "how", "seconds", "cause"),
        [
            (
                to_the_second(one["begun_at"]),
                one["kind"],
                _seconds(one["total"]),
                one["cause"].partition("\n")[0],
            )
            for one in recoveries[: -_RECOVERIES - 1 : -1]
        ],
        ("seconds",),
    )


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


def _rounded(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]], numbers: tuple[str, ...]) -> RenderableType:
    if not rows:
        return cell("")
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for column in columns:
        table.add_column(
            column, justify="right" if column in numbers else "left", overflow="ellipsis", no_wrap=True
        )
    for row in rows:
        table.add_row(*map(cell, row))
    return Group(cell(""), table)
