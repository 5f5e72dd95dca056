"""Which modules may import which, read from the source: imports for types alone and inside of functions count, too."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import chandy.storage

ROOT = Path(chandy.storage.__path__[0]).parent
PACKAGES = ("coordinator", "barrier", "state", "storage")
"""Each may import from those after it."""
LAYERS: tuple[tuple[str, ...], ...] = (
    ("", "cli", "conformance", "face", "testing"),
    ("coordinator",),
    ("changing_sides",),
    ("replicated", "upgrade"),
    (
        "adopting",
        "aggregating",
        "graceful_stop",
        "processing",
        "query_starter",
        "replication",
        "state_questions",
        "supervised_run",
    ),
    ("wiring",),
    ("config", "differences", "export", "lookup", "operators", "savepoint_target"),
    ("batch_aggregate", "savepoints", "user_acts"),
    ("adopt", "operator_arguments"),
    ("monitor",),
    ("observer", "suspension"),
    ("recovery",),
    ("restore",),
    ("hosts", "leadership"),
    ("channels",),
    ("query",),
    ("connectors",),
    ("execution", "sinks", "sources"),
    ("spark",),
    ("listening", "permit", "switch_orders"),
    ("fields", "verdicts"),
    (
        "assigned_shard",
        "batch_rows",
        "checkpoint",
        "durations",
        "extras",
        "replica_status",
        "state_progress",
        "verdict",
    ),
    ("error_texts", "errors"),
    ("protocol", "version"),
)
"""The packages and modules of the coordinator, the faces first. Each may import from the layers after its own."""
WINGS: dict[str, tuple[str, ...]] = {
    "connectors": (
        "coordinator.connectors",
        "coordinator.sources.background",
        "coordinator.sources.remembered",
        "coordinator.spark.data_sources",
        "coordinator.spark.hadoop_files",
        "coordinator.spark.logs.source_log",
    ),
    "transactional sinks": (
        "coordinator.sinks.directory_log",
        "coordinator.sinks.two_phase",
        "coordinator.wiring.transactional",
    ),
    "channels": (
        "coordinator.channels.links",
        "coordinator.channels.logs",
        "coordinator.channels.observer",
        "coordinator.channels.state",
    ),
    "processors": (
        "coordinator.processing",
        "state.operators.arrow_expiry",
        "state.operators.arrow_fit",
        "state.operators.arrow_processor",
        "state.operators.expiry_index",
        "state.processors",
    ),
    "aggregates": (
        "coordinator.aggregating",
        "coordinator.batch_aggregate",
        "coordinator.spark.partial_results",
        "state.aggregation",
    ),
    "state as tables": (
        "coordinator.differences",
        "coordinator.lookup",
        "coordinator.spark.source_offsets",
        "coordinator.state_questions",
        "state.reader",
        "state.writer",
    ),
    "page and metrics": ("coordinator.monitor",),
    "adopt": (
        "coordinator.adopt",
        "coordinator.adopting",
        "coordinator.spark.plain_checkpoint",
        "state.processors.adopted_state",
    ),
    "export": ("coordinator.export",),
    "replicas": ("coordinator.replicated", "coordinator.replication"),
    "upgrade": (
        "coordinator.changing_sides",
        "coordinator.switch_orders",
        "coordinator.upgrade",
        "coordinator.verdicts",
    ),
    "command line": ("coordinator.cli", "coordinator.face", "coordinator.restore.leftovers"),
    "stores": (
        "storage.backends.clients",
        "storage.backends.fsspec_store",
        "storage.backends.hdfs",
        "storage.backends.s3",
    ),
    "test kits": ("coordinator.conformance", "storage.conformance", "coordinator.testing", "state.testing"),
}
"""Packages and modules that could be left out; of two names that a module begins with, the longer one counts. All
others are the core: barriers, the protocol, execution, recovery, restore, leadership, hosts, keyed state, storage."""
MEET: dict[tuple[str, str], str] = {
    ("coordinator.coordinator", "connectors"): "it says which sources are known",
    ("coordinator.coordinator", "adopt"): "adoption()",
    ("coordinator.coordinator", "aggregates"): "aggregate(), aggregate_batches()",
    ("coordinator.coordinator", "page and metrics"): "it makes the observer",
    ("coordinator.coordinator", "processors"): "transform_with_state() and the like",
    ("coordinator.coordinator", "replicas"): "replicate(), and their end",
    ("coordinator.coordinator", "state as tables"): "get(), largest() and the like",
    ("coordinator.coordinator", "transactional sinks"): "start(sink=...)",
    ("coordinator.coordinator", "upgrade"): "it runs given batches where that was asked for",
    ("coordinator.wiring.assembly", "adopt"): "it makes the parts of a coordinator",
    ("coordinator.wiring.assembly", "channels"): "the same",
    ("coordinator.wiring.assembly", "state as tables"): "the same",
    ("storage.backends.open", "stores"): "fsspec has the schemes that no entry point names",
    ("channels", "transactional sinks"): "the log of a directory says what is published",
    ("connectors", "transactional sinks"): "they are the targets",
    ("replicas", "transactional sinks"): "they write the copy",
    ("test kits", "transactional sinks"): "they try them",
    ("upgrade", "transactional sinks"): "those of a shadow write nowhere",
    ("adopt", "processors"): "the state of a processor is taken over",
    ("aggregates", "processors"): "aggregates are an Arrow processor",
    ("command line", "adopt"): "a command for each",
    ("command line", "export"): "the same",
    ("command line", "page and metrics"): "the same",
    ("command line", "state as tables"): "the same",
    ("command line", "upgrade"): "the same",
    ("connectors", "state as tables"): "changes of a state are a source",
    ("export", "state as tables"): "a state becomes Parquet",
    ("page and metrics", "upgrade"): "what shadows have found is shown",
    ("replicas", "aggregates"): "of an aggregate, results are replicated",
    ("replicas", "connectors"): "it reads a source of changes, and may write messages with a registry",
    ("replicas", "state as tables"): "it follows the changes of a state",
    ("state as tables", "aggregates"): "an aggregate is shown as its results",
    ("state as tables", "processors"): "values and timers are read as a processor reads them",
    ("test kits", "aggregates"): "the tester computes them",
    ("test kits", "processors"): "the tester runs them",
    ("test kits", "state as tables"): "the tester shows a state",
    ("test kits", "upgrade"): "the tester runs recorded batches again",
    ("upgrade", "replicas"): "it stands in for one that is not written",
    ("upgrade", "processors"): "one key runs in this process, under a debugger",
    ("upgrade", "state as tables"): "the state of two versions is compared",
    ("upgrade", "test kits"): "the same as of processors",
}
"""Where a module of the core, or a wing, imports a wing all the same, and what for."""
APART = {("spark", "protocol")}
"""Imports that the layers would allow: what knows Spark and what decides about checkpoints do not know each other."""
PURE = {
    "__future__",
    "abc",
    "attrs",
    "bisect",
    "collections",
    "copy",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "re",
    "typing",
}
"""What decisions may import from outside of Chandy: no threads, clocks, files, sockets or Spark."""
DECISIONS = {
    "coordinator.connectors.kafka.losses",
    "coordinator.connectors.kafka.reading",
    "coordinator.leadership.election",
    "coordinator.restore.resume",
    "coordinator.recovery.rollback",
    "state.aggregation.combining",
    "state.host.batches",
    "state.host.snapshot_bases",
    "state.host.snapshot_orders",
    "storage.checkpoints.fencing",
    "storage.checkpoints.retention",
}
"""Modules outside of ``coordinator.protocol`` that decide by values alone, too."""
OF_PY4J = {"_jvm", "_jdf", "_jc", "_jsc", "_jsparkSession", "_jwrite", "_gateway"}
"""Attributes of PySpark's objects by which the JVM is reached; see ``docs/internals.md``."""
LONGEST = 600
"""Lines of a module. What is longer has more than one job."""
TIME_OF_DAY = {
    "storage.conformance": "it compares what a store says of an object's age",
    "storage.runtime": "it hands it out",
    "coordinator.wiring.driver": "it hands out the driver's clock, which no jump moves",
    "storage.elapsed": "it hands out the clock of leases, which two clocks agree about",
    "coordinator.connectors.files.log_clock": "it bounds what it takes from it",
    "coordinator.execution.certificates": "others compare it with their own, and it allows for a month",
    "coordinator.cli.cleanup": "the ages of files and objects are by clocks that others see, too",
    "coordinator.connectors.files.sink": "so is the age of what was half-written",
    "state.host.changelogs": "so is the age of changelogs",
    "coordinator.adopt.adopter": "it is for people",
    "coordinator.cli.top": "it is for people",
    "coordinator.cli.ui": "it is for people",
    "state.host.snapshot_manager": "it is for people",
    "coordinator.cli.shadow": "how long ago a shadow has told something",
    "coordinator.upgrade.follower": "it is for people",
    "coordinator.upgrade.own_pins": "it is for people",
    "coordinator.upgrade.shadow_rerun": "the same",
    "state.reader.feed": "it is for people",
    "state.writer.savepoint_writer": "it is for people",
}
"""Modules that look at the time of day, which may be set to any value, and why. All others are given a clock."""
SIMULATED = ("barrier", "storage", "state.host", "coordinator")
"""What runs in a simulator: its time, chance and threads come from ``storage.runtime``."""
NOT_SIMULATED = {
    "storage.conformance": "it is a test of a real store",
    "storage.runtime": "it hands them out",
    "storage.signals": "a signal comes to a process",
    "storage.logs": "its lock guards the process's own log",
    "storage.backends": "a simulator has a store of its own; ``storage.backends.retrying`` takes nothing else",
    "state.host.discovery": "it starts processes",
    "state.host.process": "it is one",
    "coordinator.adopt": "it reads what a stopped query left",
    "coordinator.cli": "it is a program of its own",
    "coordinator.connectors": "they talk to real systems; a simulator has sinks and sources of its own",
    "coordinator.export": "it writes what a program of its own reads",
    "coordinator.monitor": "it serves real browsers",
    "coordinator.sources": "they list real folders and topics",
    "coordinator.spark": "it talks to a JVM; a simulator has queries of its own",
    "coordinator.supervised_run": "it is the main thread of a program",
    "coordinator.testing": "it runs queries of Spark",
    "coordinator.wiring.driver": "it makes the secret of a process",
}
"""What takes time, chance and threads from the interpreter all the same, and why."""
READ_ONCE = {
    "storage.conformance": "it tries the store itself",
    "coordinator.monitor.trend_keeper": "it is for people, and a newer generation deletes it",
    "coordinator.channels.observer": "the next look finds what this one has missed",
    "storage.checkpoints.collect": "what is missing is not deleted",
    "storage.checkpoints.journal": "it is for people, and a newer generation deletes it",
}
"""Modules that read a store and need no second look, and why."""
VALUES = {("coordinator.restore.resume", "pathlib"), ("coordinator.protocol.statistics", "datetime")}
"""Imports of the type of a value: a path that is passed on, a time that is returned."""


@functools.cache
def sources() -> dict[str, str]:
    """The sources of all modules by name, without the leading ``chandy``; a package's own code has the package's."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path.read_text()
    return found


@dataclass(frozen=True)
class Code:
    """What the rules look at in a module."""

    docstring: str | None
    imports: list[ast.Import | ast.ImportFrom]
    classes: list[tuple[str, set[str]]]
    """Each with the names of its bases."""
    attributes: set[str]
    """The names that it reads of any object."""


def read(source: str) -> Code:
    tree = ast.parse(source)
    code = Code(ast.get_docstring(tree), [], [], set())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            code.imports.append(node)
        elif isinstance(node, ast.ClassDef):
            code.classes.append((node.name, {base.id for base in node.bases if isinstance(base, ast.Name)}))
        elif isinstance(node, ast.Attribute):
            code.attributes.add(node.attr)
    return code


@functools.cache
def modules() -> dict[str, Code]:
    """All modules by name. It takes seconds, which not every process that collects tests is to spend."""
    return {name: read(source) for name, source in sources().items()}


def imported(name: str, code: Code, known: Mapping[str, object]) -> Iterator[str]:
    """Yield the modules that a module imports: those of Chandy as in ``known``, others by their first part."""
    is_package = any(other.startswith(f"{name}.") for other in known)
    parents = name.split(".") if is_package else name.split(".")[:-1]
    for node in code.imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _named(alias.name.split("."), known)
        else:
            base = parents[: len(parents) - node.level + 1] if node.level else []
            for alias in node.names:
                yield from _named([*base, *(node.module or "").split("."), alias.name], known)


def _named(parts: list[str], known: Mapping[str, object]) -> Iterator[str]:
    own = [part for part in parts if part]
    if own[0] == "chandy":
        own = own[1:]
    elif own[0] not in PACKAGES:
        yield own[0]
        return
    # The longest prefix that is a module: what follows is a name in it.
    for length in range(len(own), 0, -1):
        if (module := ".".join(own[:length])) in known:
            yield module
            return


@functools.cache
def imports() -> dict[str, set[str]]:
    """What each module imports."""
    return {name: set(imported(name, code, modules())) for name, code in modules().items()}


def part_of(name: str) -> str:
    """The package or module of the coordinator that a module is or belongs to."""
    return [*name.split("."), ""][1]


def layer_of(name: str) -> int:
    part = part_of(name)
    at = next((at for at, layer in enumerate(LAYERS) if part in layer), None)
    assert at is not None, f"coordinator.{part} has no layer: give it one in LAYERS"
    return at


def is_upward(name: str, other: str) -> bool:
    """Whether an import points up, or to a neighbour that it must not know."""
    package, target = name.split(".")[0], other.split(".")[0]
    if package != target:
        return PACKAGES.index(package) > PACKAGES.index(target)
    if package != "coordinator" or part_of(name) == part_of(other):
        return False
    return layer_of(name) >= layer_of(other) or (part_of(name), part_of(other)) in APART


# --- the rules ----------------------------------------------------------------------------------------------


def test_no_modules_import_each_other() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' <- '.join(error.args[1])}")


def test_imports_point_down() -> None:
    upward = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in sorted(others & sources().keys())
        if is_upward(name, other)
    ]
    assert not upward, "\n".join(upward)


def wing_of(name: str) -> str | None:
    """The wing that a module is part of; None: the core."""
    own = [
        (part, wing)
        for wing, parts in WINGS.items()
        for part in parts
        if name == part or name.startswith(f"{part}.")
    ]
    return max(own)[1] if own else None


def test_the_core_and_the_wings_meet_where_the_table_says_and_nowhere_else() -> None:
    meetings = {
        (wing_of(name) or name, wing): f"{name} imports {other}"
        for name, others in imports().items()
        for other in sorted(others & sources().keys())
        if (wing := wing_of(other)) is not None and wing != wing_of(name)
    }
    unknown = [says for meeting, says in meetings.items() if meeting not in MEET]
    assert not unknown, "\n".join(unknown)
    assert sorted(MEET.keys() - meetings.keys()) == []


def test_the_core_meets_wings_where_it_is_put_together_and_nowhere_else() -> None:
    assert {where for where, _ in MEET} - WINGS.keys() == {
        "coordinator.coordinator",
        "coordinator.wiring.assembly",
        "storage.backends.open",
    }


def test_every_wing_is_there() -> None:
    for part in (part for parts in WINGS.values() for part in parts):
        assert part in sources(), part


def is_decision(name: str) -> bool:
    return name in DECISIONS or name.startswith("coordinator.protocol")


def is_pure(name: str, other: str) -> bool:
    """Whether a module that decides may import one from outside of Chandy."""
    return other in PURE or (name, other) in VALUES


def test_decisions_use_values_alone() -> None:
    impure = [
        f"{name} imports {other}"
        for name, others in imports().items()
        if is_decision(name)
        for other in sorted(others - sources().keys())
        if not is_pure(name, other)
    ]
    assert not impure, "\n".join(impure)


def test_every_module_says_what_it_is_for() -> None:
    silent = [name for name, code in modules().items() if not code.docstring]
    assert not silent, "\n".join(silent)


def test_one_name_is_one_class() -> None:
    """Names with an underscore are read beside their only use."""
    defined: dict[str, list[str]] = {}
    for name, code in modules().items():
        for defined_here, _ in code.classes:
            if not defined_here.startswith("_"):
                defined.setdefault(defined_here, []).append(name)
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


def test_one_name_is_one_class_in_what_tests_share() -> None:
    defined: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        if not path.name.startswith("test_"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    defined.setdefault(node.name, []).append(str(path))
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


def test_only_the_watch_for_a_successor_proves_that_there_is_none() -> None:
    made = {name for name, code in modules().items() for _, bases in code.classes if "FenceProof" in bases}
    assert made == {"coordinator.execution.successor_watch", "storage.checkpoints.proof"}
    # A driver never says that nobody can succeed it. People, who release pins or collect garbage, and plain Spark do.
    assert [
        name for name, source in sources().items() if "Unshared(" in source.replace("class Unshared(", "")
    ] == [
        "coordinator.cli.readers",
        "coordinator.upgrade.own_pins",
        "state.reader.feed",
        "state.writer.savepoint_writer",
        "storage.checkpoints.collect",
    ]


def modules_with(pattern: str) -> set[str]:
    return {name for name, source in sources().items() if re.search(pattern, source)}


def test_one_module_of_the_command_line_prints() -> None:
    """So that no text of others reaches a terminal as it is."""
    printing = modules_with(r"\b(?:click\.(?:s?echo|ClickException)|Console|Text|(?<!\.)print)\(")
    assert {name for name in printing if name.startswith("coordinator.cli")} == {
        "coordinator.cli.printing",
        # The demo's driver prints JSON for the demo.
        "coordinator.cli.demo_driver",
    }


def test_only_a_second_look_says_that_an_object_is_damaged_or_missing() -> None:
    assert modules_with(r"(?<!class )\bDamaged(Start)?Error\(") == {
        # Both say of whole checkpoints what ``verified`` has found.
        "coordinator.restore.restore_point",
        "storage.checkpoints.verification",
    }
    missing = modules_with(r"(?<!class )\bObjectMissingError\(")
    # It knows itself what is about to be deleted.
    assert {name for name in missing if not name.startswith("storage.backends.")} == {
        "storage.checkpoints.pins"
    }
    reading = modules_with(r"(store|savepoint|open_store\([^()]*\))\.(read|download|stat)\(")
    assert {
        name
        for name in reading - {"storage.verified"}
        if "storage.verified" not in imports()[name] and not name.startswith("storage.backends.")
    } == set(READ_ONCE)


def test_nobody_else_takes_the_time_of_day_for_a_clock() -> None:
    assert modules_with(r"\b(run)?time\.time\b|datetime\.now\(|utcnow\(|date\.today\(") == set(TIME_OF_DAY)


def test_time_chance_and_threads_come_from_one_module() -> None:
    def is_simulated(name: str) -> bool:
        apart = any(name == other or name.startswith(f"{other}.") for other in NOT_SIMULATED)
        return name.startswith(SIMULATED) and not apart

    named = {"threading", "queue", "random", "secrets", "uuid"}
    takes = r"(?<!\w)time\.(time|monotonic|sleep)\b(?!`)|ThreadPoolExecutor\(|(?<![\w.])Future\(\)"
    assert {
        name
        for name, source in sources().items()
        if is_simulated(name) and (named & imports()[name] or re.search(takes, source))
    } == set()


def test_signals_are_handled_in_one_place_which_takes_no_lock() -> None:
    """A handler that takes a lock, if only that of an ``Event``, may have interrupted the thread that has it."""
    assert modules_with(r"signal\.signal\(") == {"storage.signals"}


# --- what the rules look at ---------------------------------------------------------------------------------


def test_all_modules_are_looked_at() -> None:
    assert {name.split(".")[0] for name in sources()} == set(PACKAGES)
    assert {part_of(name) for name in sources() if name.startswith("coordinator")} >= {"", "spark", "errors"}
    assert set(sources()) >= DECISIONS
    assert all(other in imports()[name] for name, other in VALUES)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from .b import c", {"coordinator.p.b"}),
        ("from . import b", {"coordinator.p.b"}),
        ("from .. import q", {"coordinator.q"}),
        ("from ..q import c", {"coordinator.q"}),
        ("from ...state.s import c", {"state.s"}),
        ("from chandy.state.s import c", {"state.s"}),
        ("import chandy.state.s", {"state.s"}),
        ("from ...state import s, c", {"state.s", "state"}),
        ("import threading, os.path", {"threading", "os"}),
        ("from collections.abc import Iterator", {"collections"}),
        ("if TYPE_CHECKING:\n    from ..q import c", {"coordinator.q"}),
        ("def f():\n    from ..q import c", {"coordinator.q"}),
    ],
)
def test_an_import_is_seen_however_it_is_written(source: str, expected: set[str]) -> None:
    known = dict.fromkeys(
        [
            "coordinator",
            "coordinator.p",
            "coordinator.p.a",
            "coordinator.p.b",
            "coordinator.q",
            "state",
            "state.s",
        ]
    )
    assert set(imported("coordinator.p.a", read(source), known)) == expected


@pytest.mark.parametrize(
    ("name", "other", "upward"),
    [
        ("storage.catalog", "state.errors", True),
        ("state.errors", "storage.errors", False),
        ("coordinator.spark.plan", "coordinator.sinks.sink", True),
        ("coordinator.sinks.sink", "coordinator.execution.executor", True),
        ("coordinator.spark.plan", "coordinator.protocol.reasons", True),
        ("coordinator.recovery.runs", "coordinator.spark.plan", False),
        ("coordinator.recovery.runs", "coordinator.recovery.launcher", False),
        ("coordinator.recovery.runs", "coordinator", True),
        ("coordinator", "coordinator.coordinator", False),
    ],
)
def test_an_import_that_points_up_is_told_from_one_that_points_down(
    name: str, other: str, upward: bool
) -> None:
    assert is_upward(name, other) is upward


def test_no_module_is_too_long_to_be_read_at_once() -> None:
    assert {
        name: lines for name, source in sources().items() if (lines := source.count("\n")) > LONGEST
    } == {}


def test_only_what_knows_spark_reaches_through_pyspark_to_the_jvm() -> None:
    reached = {name for name, code in modules().items() if code.attributes & OF_PY4J}
    assert {name for name in reached if not name.startswith("coordinator.spark.")} == {
        "state.operators.dataframe"
    }


def test_the_page_about_internals_names_files_that_there_are() -> None:
    page = (Path(__file__).parents[1] / "docs" / "internals.md").read_text()
    named = re.findall(r"`((?:coordinator|state|storage|tests)/[a-z_/]+(?:\.py)?)`", page)
    assert len(named) > 20
    assert [one for one in named if not (Path(__file__).parents[1] / one).exists()] == []


def test_no_test_module_is_a_library_of_another_one() -> None:
    root = Path(__file__).parent
    tests = {path.stem for path in root.rglob("test_*.py")}
    # To parse them all would take seconds.
    statement = re.compile(r"^[ \t]*(?:from|import)\s(?:[^(\n]*\([^)]*\)|.*)", re.MULTILINE)
    found = {
        str(path.relative_to(root)): name
        for path in root.rglob("*.py")
        for imports_something in statement.findall(path.read_text())
        for name in re.findall(r"\w+", imports_something)
        if name in tests - {path.stem}
    }
    assert found == {}


def test_one_module_of_the_tests_knows_the_private_parts_of_a_coordinator() -> None:
    root = Path(__file__).parent
    # A stand-in may have parts of such names itself.
    reach = re.compile(r"(?<!self)\._(?:executor|supervisor|runs)\b")
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if reach.search(path.read_text())}
    assert found - {Path(__file__).name} == {"insides.py"}
