"""The garbage collector's pace inside of a task, and what is left of it afterwards."""

import gc
import subprocess
import sys

import pytest

from chandy.state.operators.garbage_collection import infrequent_garbage_collection


def test_a_task_has_its_young_objects_collected_less_often_and_leaves_the_pace_as_it_was():
    before = gc.get_threshold()
    with infrequent_garbage_collection():
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
    assert gc.get_threshold() == before


def test_the_pace_is_restored_when_the_task_fails():
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), infrequent_garbage_collection():
        _ = 1 / 0
    assert gc.get_threshold() == before


def test_modules_are_left_alone_from_the_second_task_on():
    code = """
import gc
from chandy.state.operators.garbage_collection import spare_loaded_modules
# Python 3.12 begins with some.
begun, counts = gc.get_freeze_count(), []
for _ in range(3):
    spare_loaded_modules()
    counts.append(gc.get_freeze_count())
    kept = [[] for _ in range(100)]
    gc.collect()
assert counts[0] == begun < 1000 < counts[1] and counts[2] <= counts[1], counts
"""
    subprocess.run([sys.executable, "-c", code], check=True)
