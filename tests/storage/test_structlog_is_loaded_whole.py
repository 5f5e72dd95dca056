"""Threads that need structlog at once: one loads it, and none is given half of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..waiting import DEADLINE

PROGRAM = """
import sys
import threading
from importlib.abc import MetaPathFinder

from chandy.storage import logs

DEADLINE = float(sys.argv[1])
half, go_on, moved = threading.Event(), threading.Event(), threading.Event()
imported = []


class Finder(MetaPathFinder):
    # Holds the first thread where it has half of structlog, and tells what the second one imports meanwhile.
    def find_spec(self, name, path, target=None):
        if name.startswith("structlog."):
            if threading.current_thread() is second:
                imported.append(name)
                moved.set()
            elif not half.is_set():
                half.set()
                assert go_on.wait(DEADLINE)
        return None


class Lock:
    # Like a lock, and tells that the second thread has come to it.
    def __init__(self):
        self.lock = threading.Lock()

    def __enter__(self):
        if threading.current_thread() is second:
            moved.set()
        self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()


def log():
    logs.logger("a").info("it logs")


def name():
    with logs.named(pipeline="p"):
        pass


def pool():
    logs.named_pool(1, "pool").submit(int).result(DEADLINE)


def run(what):
    what()
    ended.append(what)


ended = []
logs._loading = Lock()
assert "structlog" not in sys.modules
sys.meta_path.insert(0, Finder())
first = threading.Thread(target=run, args=(log,), daemon=True)
second = threading.Thread(target=run, args=(globals()[sys.argv[2]],), daemon=True)
first.start()
assert half.wait(DEADLINE)
second.start()
assert moved.wait(DEADLINE), "the second thread waits for something else than the lock"
assert not imported, f"the second thread imports {imported} while the first one has half of structlog"
go_on.set()
for thread in (first, second):
    thread.join(DEADLINE)
assert len(ended) == 2, "a thread has failed"
"""


@pytest.mark.parametrize("second", ["log", "name", "pool"])
def test_a_thread_waits_until_another_has_loaded_all_of_structlog(second: str) -> None:
    program = [sys.executable, "-c", PROGRAM, str(DEADLINE), second]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
