"""The pages that users read: links lead somewhere, commands are there, and facts are those of the code."""

from __future__ import annotations

import configparser
import re
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import chandy
from benchmarks.__main__ import BENCHMARKS
from chandy.coordinator.spark.environment import NEWEST, OLDEST
from chandy.state.format.evolution import MAX_VERSIONS
from chandy.state.local import changelog
from chandy.storage.checkpoints.manifest import SCHEMA_VERSION
from docs import configuration, lifecycles

from .pages import PAGES, ROOT, blocks, commands

_FENCED: Final = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@each_page
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    links = [link for link in _LINK.findall(_prose(page)) if not link.startswith("https://")]
    assert [link for link in links if not _leads_somewhere(page, link)] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in PAGES and page not in reached:
            reached.add(page)
            links = [link.partition("#")[0] for link in _LINK.findall(_prose(page))]
            left += [(page.parent / link).resolve() for link in links]
    assert reached == set(PAGES)


@each_page
def test_every_block_says_what_language_it_is_in(page: Path) -> None:
    known = {"python", "sh", "sql", "ini", "text", "yaml"}
    assert [(block.line, block.language) for block in blocks(page) if block.language not in known] == []


@each_page
def test_every_fence_is_part_of_a_block(page: Path) -> None:
    fences = len(re.findall(r"^ *```|^ *<!-- python$", page.read_text(), re.MULTILINE))
    shown = len(re.findall(r"^ *<!-- python$", page.read_text(), re.MULTILINE))
    assert fences == 2 * (len(blocks(page)) - shown) + shown


@each_page
def test_every_command_is_there(page: Path) -> None:
    found = [command for block in blocks(page) if block.language == "sh" for command in commands(block)]
    assert [" ".join(command.words) for command in found if not _is_there(command.words)] == []


def test_the_page_on_configuration_is_what_the_code_says() -> None:
    assert configuration.PAGE.read_text() == configuration.page(), "run `make docs`"


def test_the_lifecycles_on_the_page_on_design_are_those_of_the_code() -> None:
    assert lifecycles.PAGE.read_text() == lifecycles.page(), "run `make docs`"


def test_the_page_on_compatibility_names_the_versions_of_the_code() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    magic = changelog._MAGIC.decode()
    assert (
        f"| manifest | `manifest.json` of a checkpoint or savepoint, field `schema` | at most {SCHEMA_VERSION} |"
        in page
    )
    assert f"| `{magic}` | `{magic}` |" in page
    assert f"up to {MAX_VERSIONS} in the state's life" in page
    required = _setup()["options"]["install_requires"]
    assert "\nrocksdict ==0.3.29\n" in required
    assert "| rocksdict (RocksDB) | 0.3.29 |" in page
    assert "\npyspark >=4.1,<4.4\n" in required
    assert f"| PySpark | {OLDEST[0]}.{OLDEST[1]}.x to {NEWEST[0]}.{NEWEST[1]}.x;" in page
    assert "\npandas >=2.2,<3\n" in required
    assert "\npyarrow >=18\n" in required


def test_the_reference_has_every_public_name_and_no_other() -> None:
    page = (ROOT / "docs" / "site" / "reference.rst").read_text()
    parts = re.split(r"^\.\. currentmodule:: (\S+)$", page, flags=re.MULTILINE)[1:]
    named = {
        f"{module}.{name}"
        for module, text in zip(parts[::2], parts[1::2], strict=True)
        for name in re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE)
    }
    listed: list[str] = chandy.__all__  # type: ignore[attr-defined]
    public = {f"chandy.{name}" for name in listed if not name.startswith("__")}
    packages = {"chandy.barrier", "chandy.coordinator", "chandy.state", "chandy.storage"}
    others = {name for name in named if not hasattr(chandy, name.removeprefix("chandy."))}
    assert named - others == public - packages
    assert all(
        hasattr(import_module(module), name) for module, _, name in (one.rpartition(".") for one in others)
    )


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def _prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


def _leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    # As GitHub makes them.
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(_prose(page))
    }


def _is_there(words: tuple[str, ...]) -> bool:
    match words:
        case ("make", target):
            return re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
        case ("pip", "install", what):
            extra = re.search(r"\[(\w+)\]", what)
            return extra is None or extra[1] in _setup()["options.extras_require"]
        case (".venv/bin/python", "-m", "benchmarks", name, *_):
            return name in BENCHMARKS
        case (".venv/bin/python", "-m", module, *_):
            return (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
        case ("chandy", *_):
            # These are run, in tests/integration/test_pages.py.
            return True
    return False


def _setup() -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found
