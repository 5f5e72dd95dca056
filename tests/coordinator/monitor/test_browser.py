"""The pages in a real Chromium: readable at every width, in light and dark, by keyboard, and refreshed while open.

Pictures of all situations are written to build/pages, for whoever changes them to look at, and a few to docs/images.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from PIL import Image

from chandy.coordinator.listening import Page
from chandy.coordinator.monitor.facts import QueryFacts
from chandy.coordinator.monitor.page import render
from chandy.coordinator.monitor.server import Monitor
from chandy.coordinator.monitor.storage_routes import StorageRoutes
from chandy.coordinator.monitor.stored_pipelines import StoredPipelines
from chandy.coordinator.protocol.life import QueryPhase
from chandy.coordinator.verdict import ShadowVerdict
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog

from ...builders import make_manifest
from ...pages import ROOT
from .served import begin as begin
from .shown_pipeline import BUSY, EVIL, NOW, SITUATIONS, ShownPipeline

sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it")

pytestmark = pytest.mark.browser

IMAGES: Final = ROOT / "docs" / "images"
PICTURES: Final = ROOT / "build" / "pages"
WIDE, PHONE = {"width": 1200, "height": 950}, {"width": 420, "height": 950}

CONTRAST: Final = """() => {
  const number = (colour) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    const linear = (one) => one <= 10.31475 ? one / 3294.6 : ((one / 255 + 0.055) / 1.055) ** 2.4;
    return { a, light: 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) };
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = number(getComputedStyle(at).backgroundColor);
      if (found.a === 255) return found.light;
    }
    return number(getComputedStyle(document.documentElement).backgroundColor).light;
  };
  const texts = [...document.body.querySelectorAll("*")].filter((one) =>
    [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()) &&
    one.offsetParent !== null && !one.closest("script, style"));
  return texts.map((one) => {
    const [dark, light] = [number(getComputedStyle(one).color).light, behind(one)].sort((a, b) => a - b);
    return [(light + 0.05) / (dark + 0.05), one.tagName + ": " + one.textContent.trim().slice(0, 40)];
  });
}"""
"""Contrast of each text with what is behind it, as WCAG 2 defines it (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""

BROKEN: Final = """() => [...document.querySelectorAll("td.number, th.number, .time")].filter((one) => {
  const range = document.createRange();
  range.selectNodeContents(one);
  return new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1;
}).map((one) => one.textContent)"""
"""Numbers and times that do not stand in one line."""

SCROLLED: Final = """() => [...document.querySelectorAll("#page *, #orders *")].filter((one) =>
  one.scrollWidth > one.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(one).overflowX))
  .map((one) => one.outerHTML.slice(0, 100))"""
"""What has to be scrolled sideways to be read."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "there is no Chromium: apt-get install chromium"
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield made
        made.close()


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, begin: Callable[..., Monitor]) -> Iterator[Open]:
    """Opens a page of a pipeline. No page may log an error, or ask another server."""
    errors: list[str] = []
    contexts = []

    def new(
        pipeline: ShownPipeline | None, path: str = "/", size: dict[str, int] = WIDE, scheme: str = "light"
    ) -> Any:
        monitor = begin("orders")
        if pipeline is not None:
            monitor.routes.tell(pipeline)
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda sent: None if sent.url.startswith(monitor.url) else errors.append(sent.url))
        page.goto(monitor.url + path)
        page.monitor = monitor
        return page

    yield new
    for context in contexts:
        context.close()
    # Once a server is gone, it cannot be asked.
    assert [one for one in errors if "ERR_CONNECTION" not in one] == []


# Contrast is a matter of the scheme, and what fits is one of the size.
OTHERS: Final = pytest.mark.full("coordinator/monitor/test_browser.py::test_a_page_can_be_read")


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(WIDE, "light", id="wide-light"),
        pytest.param(PHONE, "dark", id="phone-dark"),
        pytest.param(WIDE, "dark", id="wide-dark", marks=OTHERS),
        pytest.param(PHONE, "light", id="phone-light", marks=OTHERS),
    ],
)
@pytest.mark.parametrize(
    ("situation", "path"),
    [*((one, "/") for one in SITUATIONS), ("well", "/checkpoints/8639"), ("failed", "/checkpoints/8639")],
)
def test_a_page_can_be_read(
    opened: Open, situation: str, path: str, size: dict[str, int], scheme: str
) -> None:
    page = opened(SITUATIONS[situation](), path, size, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.evaluate(BROKEN) == []
    assert page.evaluate(SCROLLED) == []
    texts = page.evaluate(CONTRAST)
    assert len(texts) > 3
    assert [(round(ratio, 2), text) for ratio, text in texts if ratio < 4.5] == []
    look_at(page, f"{situation}{path.replace('/', '-').rstrip('-')}-{size['width']}-{scheme}")


SHOWN: Final = {
    "well-1200-light": "page-well",
    "restarting-1200-light": "page-restarting",
    "failed-420-dark": "page-narrow",
}
"""Which pictures docs show, of the upper part of a page."""


def look_at(page: Any, name: str) -> None:
    """Write a picture of a page for those who change it, and a small one for docs if they show it."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
    if name in SHOWN:
        # In few colours, so that the repository stays small.
        picture = Image.open(BytesIO(page.screenshot())).quantize(32)
        picture.save(IMAGES / f"{SHOWN[name]}.png", optimize=True)


def test_the_keyboard_reaches_everything_and_sees_where_it_is(opened: Open) -> None:
    page = opened(ShownPipeline())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])(getComputedStyle(document.activeElement))"
        )
        if page.evaluate("document.activeElement === document.body"):
            break
        assert style == ["solid", "3px"]
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 120)"))
    focusable = page.evaluate(
        """() => [...document.querySelectorAll("main a, main summary, main figure, main .word")]
        .filter((one) => one.checkVisibility()).map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert set(focusable) <= reached


@pytest.fixture
def refreshed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has open pages loaded again very soon."""
    with monkeypatch.context() as patched:
        patched.setattr(render, "REFRESH_SECONDS", 0.2)
        render._environment.cache_clear()
        yield
    render._environment.cache_clear()


@pytest.mark.usefixtures("refreshed")
def test_an_open_page_follows_the_pipeline_and_says_when_the_driver_is_gone(opened: Open) -> None:
    facts = [BUSY]
    page = opened(ShownPipeline(read=lambda: facts[0]))
    page.locator("summary").first.click()
    facts[0] = attrs.evolve(BUSY, queries={"totals": QueryFacts(QueryPhase.RUNNING, 12345)})
    page.get_by_text("12345").wait_for()
    assert page.locator("details").first.get_attribute("open") is not None
    assert page.locator("#gone").is_hidden()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.monitor.close()
    page.locator("#gone").wait_for()
    assert re.match("The driver has not answered since .+", page.locator("#gone").inner_text())


def test_a_hostile_name_runs_nothing(opened: Open) -> None:
    page = opened(SITUATIONS["hostile-names"]())
    assert page.locator("main script").count() == 0
    assert EVIL in page.locator("main").inner_text()


def test_a_chart_is_read_by_pointer_and_by_keys(opened: Open) -> None:
    page = opened(ShownPipeline())
    first = page.locator("figure").first
    latest = first.locator("output").inner_text()
    first.locator(".reading").nth(10).hover(force=True)
    told = page.locator("figure output").all_inner_texts()
    assert re.match(r"[\d,]+ in, [\d,]+ out", told[0])
    # All charts have one axis of time.
    assert [re.search(r"\(.+\)$", one)[0] for one in told] == [re.search(r"\(.+\)$", told[0])[0]] * len(told)
    page.mouse.move(0, 0)
    first.focus()
    assert first.locator("output").inner_text() == latest
    page.keyboard.press("ArrowRight")
    newest = first.locator("output").inner_text()
    page.keyboard.press("ArrowLeft")
    assert first.locator("output").inner_text() not in (newest, latest)
    page.keyboard.press("Tab")
    assert first.locator("output").inner_text() == latest


def test_a_word_explains_itself_to_pointer_and_keys(opened: Open) -> None:
    page = opened(ShownPipeline(), size=PHONE)
    said = "(one) => getComputedStyle(one, '::after').content"
    word = page.locator(".word").first
    assert word.evaluate(said) == "none"
    word.focus()
    assert "number of the driver" in word.evaluate(said)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_times_are_those_of_who_looks(browser: Any, begin: Callable[..., Monitor]) -> None:
    monitor = begin("orders")
    monitor.routes.tell(ShownPipeline())
    context = browser.new_context(timezone_id="Asia/Kolkata")
    page = context.new_page()
    page.goto(monitor.url)
    now = page.locator(".now time")
    assert (now.inner_text(), now.get_attribute("title")) == (
        "2026-11-27 17:16:40",
        "2026-11-27 11:46:40 UTC",
    )
    context.close()


@pytest.fixture
def in_charge(browser: Any, begin: Callable[..., Monitor]) -> Iterator[tuple[Any, ShownPipeline]]:
    """A page of a driver with a token, and the pipeline."""
    shadows = {"next": ShadowVerdict(shadow="next", pipeline="orders")}
    pipeline = ShownPipeline(read=lambda: attrs.evolve(BUSY, shadows=shadows))
    monitor = begin("orders", token="secret")
    monitor.routes.tell(pipeline)
    context = browser.new_context(viewport=PHONE, http_credentials={"username": "me", "password": "secret"})
    page = context.new_page()
    page.goto(monitor.url)
    yield page, pipeline
    context.close()


def test_an_action_asks_once_and_says_how_it_ended(in_charge: tuple[Any, ShownPipeline]) -> None:
    page, pipeline = in_charge
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    outcome = page.locator("#outcome")
    page.get_by_role("button", name="Take a checkpoint").click()
    assert page.locator("#asked").inner_text() == "Take a checkpoint?"
    page.get_by_role("button", name="No").click()
    assert (pipeline.targets, outcome.inner_text()) == ([], "")
    page.get_by_role("button", name="Take a checkpoint").click()
    page.get_by_role("button", name="Yes").click()
    # The password of the page reads, and orders nothing: it comes by itself.
    page.get_by_text("✗ a bearer token is needed").wait_for()
    assert pipeline.targets == []
    page.get_by_label("Token", exact=True).fill("secret")
    page.get_by_role("button", name="Take a checkpoint").click()
    page.get_by_role("button", name="Yes").click()
    page.get_by_text("✓ manual 3 is complete: file:///s/p").wait_for()
    for field, text, button, end in (
        ("to", "before", "Take a savepoint", "✓ manual 3 is complete: file:///s/p"),
        (None, "", "Drain", "✓ the machine has no shards"),
        ("tasks", "3", "Rescale", "✓ the operator is rescaled"),
        (None, "next", "Switch", "✓ the shadow leads"),
        ("savepoint", "last", "Stop with a savepoint", "✓ the pipeline is stopped"),
    ):
        if field is not None:
            page.get_by_label(field, exact=True).fill(text)
        page.get_by_role("button", name=button).click()
        assert text in page.locator("#asked").inner_text()
        page.get_by_role("button", name="Yes").click()
        # That of the action before may be the same.
        page.locator("#orders form button:disabled").first.wait_for(state="detached")
        page.get_by_text(end).wait_for()
    assert pipeline.targets == ["none: a checkpoint", "before"]
    assert pipeline.told == [
        ("node-1", "10 min"),
        ("by-customer", 3, "1 min"),
        ("next", "3 min", False, "1 h"),
        ("last", False),
    ]


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_list_of_a_storage_can_be_read_and_leads_to_each_pipeline(
    browser: Any, tmp_path: Path, size: dict[str, int]
) -> None:
    for name in ("orders", "returns"):
        catalog = Catalog(LocalStore(tmp_path / name))
        generation = catalog.take_over("me", 1.0).generation
        catalog.commit(make_manifest(1, generation, triggered_at=NOW - 12, completed_at=NOW - 10))
    monitor = Monitor.begin(StorageRoutes(StoredPipelines(str(tmp_path), lambda: NOW)), Page("127.0.0.1:0"))
    context = browser.new_context(viewport=size)
    page = context.new_page()
    page.goto(monitor.url)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert [(ratio, text) for ratio, text in page.evaluate(CONTRAST) if ratio < 4.5] == []
    look_at(page, f"storage-{size['width']}-light")
    page.get_by_role("link", name="returns").click()
    page.get_by_role("link", name="day").click()
    assert page.url == f"{monitor.url}/pipelines/returns/?span=day"
    assert page.locator("h1").inner_text() == "returns"
    context.close()
    monitor.close()
