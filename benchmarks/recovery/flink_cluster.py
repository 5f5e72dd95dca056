"""A Flink cluster of one JobManager and one TaskManager: its processes, its configuration, its REST interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from ..ports import free_ports
from .flink_environment import JAVA_OPTIONS, Distribution

JOB: Final = Path(__file__).with_name("flink_job.py")
JOB_ID: Final = "c0ffee" * 5 + "00"
SLOTS: Final = 2
SETTINGS: Final[dict[str, Any]] = {
    "jobmanager.rpc.address": "localhost",
    "jobmanager.memory.process.size": "1600m",
    "taskmanager.memory.process.size": "4g",
    "taskmanager.numberOfTaskSlots": SLOTS,
    "parallelism.default": SLOTS,
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": True,
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    # Checkpoints are asked for by hand; but Flink takes none at all where it has no interval.
    "execution.checkpointing.interval": "10000 d",
    "execution.checkpointing.local-backup.enabled": True,
    "execution.state-recovery.from-local": True,
    # Else the first checkpoint after a restart by hand would hold all files once more.
    "execution.state-recovery.claim-mode": "CLAIM",
    # Its default, but at once and not after a second. With no delay at all it would try a thousand times a second
    # while a TaskManager starts, and leave that no core.
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1 ms",
    "restart-strategy.exponential-delay.max-backoff": "250 ms",
    "restart-strategy.exponential-delay.backoff-multiplier": 2.0,
    "restart-strategy.exponential-delay.reset-backoff-threshold": "2 s",
    "web.exception-history-size": 1000,
    # With a name of its own, a TaskManager that starts is known as the one that was there before it.
    "taskmanager.resource-id": "taskmanager",
    # A TaskManager that is there before its JobManager would else wait for ten seconds.
    "cluster.registration.error-delay": "100 ms",
    # The parts of a recovery are read from it; what it said three seconds ago would not do.
    "rest.cache.execution-graph.timeout": "1 ms",
}
"""What is not as it comes, beside ports and folders."""
_JOB_MANAGER: Final = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
_PYTHON_DRIVER: Final = "org.apache.flink.client.python.PythonDriver"
_TASK_MANAGER: Final = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_POLL_SECONDS: Final = 0.02
_DEADLINE_SECONDS: Final = 900.0
_LOGGING: Final = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %-60c %x - %m%n
"""


class FlinkError(Exception):
    """The cluster did not do what it was asked to."""


class Cluster:
    """Processes that are started and killed as the benchmark wants; all files in one folder.

    The job is an *application*: the JobManager itself runs the program that makes it, so no client has to start.
    """

    def __init__(self, distribution: Distribution, folder: Path, arguments: list[str]) -> None:
        """Write the configuration; nothing is started.

        Args:
            distribution: Flink.
            folder: for everything that it writes.
            arguments: of the job.
        """
        self._distribution = distribution
        self._arguments = arguments
        self._folder = folder
        self._configuration = folder / "conf"
        self._configuration.mkdir(parents=True)
        self._checkpoints = folder / "checkpoints"
        (self._configuration / "log4j.properties").write_text(_LOGGING)
        self._rest, rpc, blob = free_ports(3)
        settings = {
            **SETTINGS,
            "jobmanager.rpc.port": rpc,
            "blob.server.port": blob,
            "rest.port": self._rest,
            "execution.checkpointing.dir": self._checkpoints.as_uri(),
            "process.working-dir": str(self.local),
            "io.tmp.dirs": str(self.local / "tmp"),
            "python.client.executable": str(distribution.python),
        }
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in settings.items()]
        (self._configuration / "config.yaml").write_text("".join(lines))
        self.local.mkdir()
        self._options = {
            process: distribution.process_options(process, self._configuration) for process in ("JM", "TM")
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def local(self) -> Path:
        """What the processes keep on the machine's own disk: RocksDB, and local copies of checkpoints."""
        return self._folder / "local"

    @property
    def log(self) -> Path:
        """What the JobManager prints."""
        return self._folder / "JM.log"

    @property
    def printed(self) -> Path:
        """What the TaskManager prints: its log, and the output of the job's sink."""
        return self._folder / "TM.log"

    # --- processes ------------------------------------------------------------------------------------------

    def start_job_manager(self, checkpoint: str | None = None) -> None:
        """Start the JobManager with the job, from a retained checkpoint if there is one."""
        restored = [] if checkpoint is None else ["--fromSavepoint", checkpoint]
        job = ["--job-classname", _PYTHON_DRIVER, "--job-id", JOB_ID, *restored]
        self._start("JM", _JOB_MANAGER, [*job, "-py", str(JOB), *self._arguments])

    def start_task_manager(self) -> None:
        """Start the TaskManager; it offers its slots as soon as there is a JobManager."""
        self._start("TM", _TASK_MANAGER, [])

    def kill_task_manager(self) -> float:
        """Kill the TaskManager with SIGKILL; return when, in seconds since 1970."""
        return self._kill("TM")

    def kill(self) -> float:
        """Kill every process with SIGKILL; return when, in seconds since 1970."""
        moment = time.time()
        for process in list(self._processes):
            self._kill(process)
        return moment

    def check(self) -> None:
        """Raise if a process has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise FlinkError(
                    f"{name} has ended with {process.returncode}: {_tail(self._folder / f'{name}.log')}"
                )

    def _start(self, process: str, main: str, arguments: list[str]) -> None:
        jvm, own = self._options[process]
        logging = f"-Dlog4j.configurationFile={(self._configuration / 'log4j.properties').as_uri()}"
        command = [self._distribution.java, *jvm, *JAVA_OPTIONS, logging]
        command += ["-classpath", self._distribution.class_path, main]
        command += ["--configDir", str(self._configuration), *own, *arguments]
        with (self._folder / f"{process}.log").open("ab") as log:
            self._processes[process] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={
                    **os.environ,
                    "FLINK_CONF_DIR": str(self._configuration),
                    "FLINK_HOME": str(self._distribution.folder),
                    "FLINK_LIB_DIR": str(self._distribution.folder / "lib"),
                    "FLINK_OPT_DIR": str(self._distribution.folder / "opt"),
                },
                start_new_session=True,
            )

    def _kill(self, name: str) -> float:
        process = self._processes.pop(name)
        # One that has ended by itself may have left its number to another one.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        moment = time.time()
        process.wait()
        return moment

    # --- its REST interface ---------------------------------------------------------------------------------

    def checkpoint(self) -> str:
        """Take a checkpoint, wait until it is complete, and return where it is."""
        request = self._ask("/checkpoints", {"checkpointType": "CONFIGURED"})["request-id"]
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while (answer := self._ask(f"/checkpoints/{request}"))["status"]["id"] != "COMPLETED":
            self._check(deadline)
        outcome = answer["operation"]
        if outcome.get("failureCause"):
            raise FlinkError(f"The checkpoint failed: {outcome['failureCause']}")
        # Not asked for: the statistics, which would say it, may not know the newest one yet.
        return (self._checkpoints / JOB_ID / f"chk-{outcome['checkpointId']}").as_uri()

    def noted(self) -> list[float]:
        """Return when the JobManager took note of failures, in seconds since 1970; the newest ones."""
        history = self._ask("/exceptions?maxExceptions=1000")["exceptionHistory"]
        return [entry["timestamp"] / 1000 for entry in history["entries"]]

    def moments(self) -> dict[str, float]:
        """Return when the last task of the job's present attempt came into each state, in seconds since 1970."""
        found: dict[str, float] = {}
        for vertex in self._ask("")["vertices"]:
            for subtask in self._ask(f"/vertices/{vertex['id']}/subtasktimes")["subtasks"]:
                for state, moment in subtask["timestamps"].items():
                    if moment > 0:
                        found[state] = max(found.get(state, 0.0), moment / 1000)
        return found

    def await_running(self) -> None:
        """Wait until every task of the job runs."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            try:
                if all(vertex["status"] == "RUNNING" for vertex in self._ask("")["vertices"]):
                    return
            except (OSError, urllib.error.URLError):
                pass  # The JobManager is not there yet, or does not know the job yet.
            self._check(deadline)

    def _check(self, deadline: float) -> None:
        self.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"Flink has taken more than {_DEADLINE_SECONDS:g} s: {_tail(self.log)}")
        time.sleep(_POLL_SECONDS)

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        url = f"http://localhost:{self._rest}/jobs/{JOB_ID}{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
