"""A Flink cluster of one JobManager and one TaskManager: its processes, its configuration, its REST interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
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
    # Checkpoints are triggered manually, but Flink takes none at all without an interval.
    "execution.checkpointing.interval": "10000 d",
    "execution.checkpointing.local-backup.enabled": True,
    "execution.state-recovery.from-local": True,
    # Otherwise the first checkpoint after a manual restart would store all files again.
    "execution.state-recovery.claim-mode": "CLAIM",
    # The default strategy, but without its first delay of a second. With no delay at all it would retry a thousand
    # times a second while a TaskManager starts, and leave no core to it.
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1 ms",
    "restart-strategy.exponential-delay.max-backoff": "250 ms",
    "restart-strategy.exponential-delay.backoff-multiplier": 2.0,
    "restart-strategy.exponential-delay.reset-backoff-threshold": "2 s",
    "web.exception-history-size": 1000,
    # With a fixed name, a restarted TaskManager is recognized as the previous one.
    "taskmanager.resource-id": "taskmanager",
    # Otherwise a TaskManager that starts before its JobManager would wait for ten seconds.
    "cluster.registration.error-delay": "100 ms",
    # The parts of a recovery are read from it, so it must be up to date.
    "rest.cache.execution-graph.timeout": "1 ms",
}
"""The settings that differ from Flink's defaults, except ports and folders."""
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
    """The cluster failed."""


class Cluster:
    """The processes of a cluster, with all files in one folder.

    The job is an *application*: the JobManager runs the program that creates the job, so no client has to start.
    """

    def __init__(
        self,
        distribution: Distribution,
        folder: Path,
        arguments: list[str],
        *,
        job: Path = JOB,
        jars: Sequence[Path] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the configuration. Nothing is started.

        Args:
            distribution: Flink.
            folder: takes all files.
            arguments: the arguments of the job.
            job: the program that creates the job.
            jars: connectors that the job needs besides those of the distribution.
            settings: settings that differ from ``SETTINGS``.
        """
        self._job = job
        self._class_path = os.pathsep.join([*map(str, jars), distribution.class_path])
        self._distribution = distribution
        self._arguments = arguments
        self._folder = folder
        self._configuration = folder / "conf"
        self._configuration.mkdir(parents=True)
        self._checkpoints = folder / "checkpoints"
        (self._configuration / "log4j.properties").write_text(_LOGGING)
        self._rest, rpc, blob = free_ports(3)
        written = {
            **SETTINGS,
            **(settings or {}),
            "jobmanager.rpc.port": rpc,
            "blob.server.port": blob,
            "rest.port": self._rest,
            "execution.checkpointing.dir": self._checkpoints.as_uri(),
            "process.working-dir": str(self.local),
            "io.tmp.dirs": str(self.local / "tmp"),
            "python.client.executable": str(distribution.python),
        }
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in written.items()]
        (self._configuration / "config.yaml").write_text("".join(lines))
        self.local.mkdir()
        self._options = {
            process: distribution.process_options(process, self._configuration) for process in ("JM", "TM")
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def local(self) -> Path:
        """The local files of the processes: RocksDB, and local copies of checkpoints."""
        return self._folder / "local"

    @property
    def log(self) -> Path:
        """The output of the JobManager."""
        return self._folder / "JM.log"

    @property
    def printed(self) -> Path:
        """The output of the TaskManager: its log, and the rows of the job's sink."""
        return self._folder / "TM.log"

    # --- processes ------------------------------------------------------------------------------------------

    def start_job_manager(self, checkpoint: str | None = None) -> None:
        """Start the JobManager with the job, from a retained checkpoint if one is given."""
        restored = [] if checkpoint is None else ["--fromSavepoint", checkpoint]
        job = ["--job-classname", _PYTHON_DRIVER, "--job-id", JOB_ID, *restored]
        self._start("JM", _JOB_MANAGER, [*job, "-py", str(self._job), *self._arguments])

    def start_task_manager(self) -> None:
        """Start the TaskManager. It offers its slots as soon as the JobManager runs."""
        self._start("TM", _TASK_MANAGER, [])

    def kill_task_manager(self) -> float:
        """Kill the TaskManager with SIGKILL, and return the time in seconds since 1970."""
        return self._kill("TM")

    def kill(self) -> float:
        """Kill all processes with SIGKILL, and return the time in seconds since 1970."""
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
        command += ["-classpath", self._class_path, main]
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
        # If the process has ended by itself, another process may have its id.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        moment = time.time()
        process.wait()
        return moment

    # --- its REST interface ---------------------------------------------------------------------------------

    def checkpoint(self) -> str:
        """Take a checkpoint, wait until it is complete, and return its URI."""
        request = self._ask("/checkpoints", {"checkpointType": "CONFIGURED"})["request-id"]
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while (answer := self._ask(f"/checkpoints/{request}"))["status"]["id"] != "COMPLETED":
            self._check(deadline)
        outcome = answer["operation"]
        if outcome.get("failureCause"):
            raise FlinkError(f"The checkpoint failed: {outcome['failureCause']}")
        # The statistics have the path too, but may not have the newest checkpoint yet.
        return (self._checkpoints / JOB_ID / f"chk-{outcome['checkpointId']}").as_uri()

    def noted(self) -> list[float]:
        """Return when the JobManager recorded the newest failures, in seconds since 1970."""
        history = self._ask("/exceptions?maxExceptions=1000")["exceptionHistory"]
        return [entry["timestamp"] / 1000 for entry in history["entries"]]

    def moments(self) -> dict[str, float]:
        """Return when the last task of the current attempt entered each state, in seconds since 1970."""
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
                pass  # The JobManager does not run yet, or does not know the job yet.
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
