"""The dashboard and the alert rules ask for metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from chandy.coordinator.monitor.metrics import exposition

from .known_facts import FACTS

FOLDER = files("chandy.coordinator.monitor")
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
OF_PROMETHEUS = {"instance", "le"}
"""Labels that Prometheus adds, and that of a histogram's buckets."""


def series() -> dict[str, set[str]]:
    """The names of all series, with the labels that any of them has."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition("p", FACTS).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        # A histogram has series for all its parts, also before the first checkpoint.
        found.setdefault(family.name + "_total" if family.type == "counter" else family.name, set())
    found["chandy_checkpoints_total"] |= {"pipeline", "kind", "status", "reason"}
    found["chandy_recoveries_total"] |= {"pipeline", "kind"}
    return found


def expressions() -> Iterator[Any]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield pytest.param(target["expr"], target["legendFormat"], id=panel["title"])
    for rule in RULES:
        yield pytest.param(rule["expr"], json.dumps(rule["annotations"]), id=rule["alert"])


@pytest.mark.parametrize(("expression", "shown"), list(expressions()))
def test_an_expression_asks_for_what_there_is(expression: str, shown: str) -> None:
    known = series()
    asked = re.findall(r"\bchandy_\w+", expression)
    assert asked
    assert set(asked) <= known.keys()
    labels = {label for name in asked for label in known[name]} | OF_PROMETHEUS
    for listed in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert set(listed.replace(" ", "").split(",")) <= labels
    for chosen in re.findall(r"\{([^}]*)\}", expression):
        assert {one.partition("=")[0].rstrip("!") for one in chosen.split(",")} <= labels
    used = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", shown))
    assert used <= labels


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))
    missing = {name for name in series() if name.removesuffix("_bucket") not in shown and name not in shown}
    parts = {name for name in missing if name.endswith(("_sum", "_count"))}
    assert missing - parts == {"chandy_build_info", "chandy_checkpoints_restored_total"}


def test_every_rule_says_what_to_do() -> None:
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning")
