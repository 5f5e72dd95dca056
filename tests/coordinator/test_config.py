"""The configuration: defaults, durations, and values that are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import attrs
import pytest

from chandy import Page, Permit, Savepoints
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import ChandyError, ConfigError
from chandy.coordinator.recovery.restart import ExponentialBackoff, NoRestart


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = CheckpointConfig()
    assert config.interval_seconds == 10
    assert (config.timeout_seconds, config.savepoint_timeout_seconds) == (600, 3600)
    assert (config.max_concurrent, config.tolerable_failures, config.retained) == (1, 3, 3)
    assert config.restart == ExponentialBackoff(initial="1 s", maximum="1 min", attempts=10)


def test_a_savepoint_has_its_own_timeout() -> None:
    config = CheckpointConfig(timeout="1 min", savepoint_timeout="3 h")
    assert (config.timeout_seconds, config.savepoint_timeout_seconds) == (60, 10_800)


def test_the_interval_during_a_backlog_is_at_least_the_usual_one() -> None:
    assert CheckpointConfig().limits.longest_interval == 10
    assert CheckpointConfig(interval_during_backlog="1 min").limits.longest_interval == 60
    with pytest.raises(ConfigError, match="expected None, as interval is None"):
        CheckpointConfig(interval=None, interval_during_backlog="1 min")


def test_durations_may_be_timedeltas() -> None:
    config = CheckpointConfig(interval=timedelta(minutes=1))
    assert config.interval_seconds == 60


@pytest.mark.parametrize(
    ("given", "size"), [("1g", 1 << 30), ("512MB", 512 << 20), (1 << 28, 1 << 28), ("16m", 16 << 20)]
)
def test_memory_may_be_given_as_in_sparks_settings(given: int | str, size: int) -> None:
    assert CheckpointConfig(host_memory=given).host_memory_bytes == size


@pytest.mark.parametrize(
    ("wrong", "says"),
    [(0, "with its unit"), (10, "with its unit"), ("0 s", "a duration above 0"), (timedelta(0), "above 0")],
)
def test_an_interval_that_is_refused_is_told_what_it_lacks(wrong: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        CheckpointConfig(interval=wrong)
    assert "0 or more" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("interval", "0 s"),
        ("interval", "often"),
        ("interval", 10),
        ("interval_during_backlog", "9 s"),
        ("interval_during_backlog", "often"),
        ("timeout", "0 s"),
        ("savepoint_timeout", timedelta(0)),
        ("max_concurrent", 0),
        ("max_concurrent", 1.0),
        ("tolerable_failures", -1),
        ("tolerable_failures", True),
        ("retained", 0),
        ("savepoints", 7),
        ("restart", "never"),
        ("restart", NoRestart),
        ("host_memory", 1024),
        ("host_memory", "1m"),
        ("host_memory", "1"),
        ("host_memory", "much"),
        ("host_memory", 1e9),
        ("host_memory", True),
        ("work_dir", " "),
        ("cache_dir", 3),
        ("allow_unfenced", "yes"),
        ("page", "127.0.0.1:9464"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_field(field: str, wrong: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        CheckpointConfig(**{field: wrong})
    error = caught.value
    assert isinstance(error, ChandyError)
    assert (error.what, error.found) == (f"invalid CheckpointConfig.{field}", repr(wrong))
    assert all(part in str(error) for part in (error.what, error.found, error.expected))


@pytest.mark.parametrize(
    ("kind", "wrong", "like"),
    [
        (CheckpointConfig, "intervall", "interval"),
        (Page, "tokens", "token"),
        (Permit, "lost_outputs", "lost_output"),
        (Savepoints, "nothing_like_it", "every"),
    ],
)
def test_a_field_that_is_not_there_is_told_with_one_that_is(kind: Any, wrong: str, like: str) -> None:
    with pytest.raises(ConfigError, match=f"no field '{wrong}': expected .*{like}"):
        kind(**{wrong: "10 s"})


def test_every_field_is_checked() -> None:
    assert [field.name for field in attrs.fields(CheckpointConfig) if field.validator is None] == []


def test_a_configuration_cannot_be_changed_afterwards() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        CheckpointConfig().retained = 0  # type: ignore[misc]
    with pytest.raises(ConfigError):
        attrs.evolve(CheckpointConfig(), retained=0)
