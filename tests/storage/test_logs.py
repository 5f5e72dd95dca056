"""What lines of the log are about, and what is said of a long wait."""

from __future__ import annotations

import re
import threading

import pytest

from chandy.storage.logs import carried, caused_by, logger, named, named_pool
from chandy.storage.long_waits import Reminder, told_if_slow

from ..waiting import eventually

log = logger("chandy.tests")


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_names_are_in_every_line_inside_of_the_with_and_in_none_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with named(pipeline="p"):
        with named(query="q"):
            log.info("inside")
        log.info("between")
    log.info("behind")
    assert caplog.messages == [
        "event=inside pipeline=p query=q",
        "event=between pipeline=p",
        "event=behind",
    ]


def test_what_follows_from_an_event_has_its_id_and_a_thread_that_outlives_the_event_has_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with named(pipeline="p"), caused_by(417):
        log.info("inside")
        with caused_by(None):
            log.info("of no event")
        log.info("the event itself", event_id=418)
        thread = threading.Thread(target=carried(log.info), args=("in a thread",))
        thread.start()
        thread.join()
    log.info("behind")
    assert caplog.messages == [
        "event=inside pipeline=p event_id=417",
        'event="of no event" pipeline=p',
        'event="the event itself" pipeline=p event_id=418',
        'event="in a thread" pipeline=p',
        "event=behind",
    ]


def test_threads_that_go_on_with_the_work_log_with_its_names(caplog: pytest.LogCaptureFixture) -> None:
    with named(pipeline="p"):
        thread = threading.Thread(target=carried(log.info), args=("in a thread",))
        pool = named_pool(1, "chandy-test")
    thread.start()
    thread.join()
    with pool:
        pool.submit(log.info, "in a pool").result()
        pool.submit(log.info, "again").result()
    assert caplog.messages == [
        f"event={text} pipeline=p" for text in ('"in a thread"', '"in a pool"', "again")
    ]


def test_a_traceback_stands_below_its_line(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed", batch=3)
    line, *trace = caplog.messages[0].splitlines()
    assert line == "event=failed batch=3"
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ValueError: no")


def test_a_long_wait_is_told_after_some_seconds_and_then_ever_more_seldom() -> None:
    reminder = Reminder()
    assert [second for second in range(300) if reminder.is_due(second)] == [5, 10, 20, 40, 80, 140, 200, 260]


def test_work_that_takes_long_says_what_it_is_with_the_names_of_its_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with named(pipeline="p"), told_if_slow(log, "the storage", first=0.001, storage="s3://far"):
        eventually(lambda: len(caplog.messages) > 1)
    told_first = re.sub(r"seconds=\d+", "seconds=N", caplog.messages[0])
    assert told_first == 'event="waiting for the storage" pipeline=p seconds=N storage=s3://far'
    told = len(caplog.messages)
    assert not [thread for thread in threading.enumerate() if thread.name == "chandy-long-wait"]
    assert len(caplog.messages) == told


def test_work_that_is_done_soon_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with told_if_slow(log, "the storage"):
        pass
    assert caplog.messages == []
