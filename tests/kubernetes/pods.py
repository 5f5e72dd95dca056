"""Pods as machines in namespaces, each with one container: what a kubelet does for Spark's executors."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any, Final

from benchmarks.cluster.namespaces import NamespaceMachine, Network

Json = dict[str, Any]

_PRIVATE: Final = ("/tmp", "/var/tmp", "/run", "/dev/shm")
"""What a machine has of its own anyway: an ``emptyDir`` may be mounted there."""


class Pod:
    """A pod that runs, until its container ends or it is deleted.

    Args:
        resource: the pod as Kubernetes describes it. It is kept up to date: ``status``, ``metadata``.
        machine: where the container runs; it is given up with it.
        image: a folder whose files the container has in ``/opt``.
        log: takes the container's output.
    """

    def __init__(self, resource: Json, machine: NamespaceMachine, image: Path, log: Path) -> None:
        self.resource = resource
        self._machine = machine
        self._power = threading.Lock()
        resource["status"] = {"phase": "Running", "podIP": machine.address, "hostIP": machine.address}
        (self._container,) = resource["spec"]["containers"]
        self._check_volumes()
        self._env = {one["name"]: self._value(one) for one in self._container.get("env", [])}
        machine.run("sh", "-c", f"mount -t tmpfs none /opt && cp {image}/* /opt")
        command = [*self._container.get("command", ["/opt/entrypoint.sh"]), *self._container.get("args", [])]
        with log.open("ab") as output:
            self._process = machine.start(command, self._env, output)
        self._log = log
        threading.Thread(target=self._await_end, name=f"pod {self.name}", daemon=True).start()

    @property
    def name(self) -> str:
        return str(self.resource["metadata"]["name"])

    @property
    def has_ended(self) -> bool:
        return self.resource["status"]["phase"] != "Running"

    def kill(self) -> None:
        """End it at once, as when its node loses power."""
        with self._power:
            self._machine.kill()

    def terminate(self, grace_seconds: float) -> None:
        """End it in order: the hook before the stop, and after the time of grace SIGKILL.

        No SIGTERM: it goes to the first process of a container, here a shell, for which it means nothing.
        """
        hook = self._container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if hook and grace_seconds and not self.has_ended:
            with self._log.open("ab") as output:
                self._machine.start(hook, self._env, output)
            try:
                self._process.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                self.resource["status"]["reason"] = "killed after its time of grace"
        self.kill()

    def _await_end(self) -> None:
        """Give up the machine with its container, as the processes of a container end with its first one."""
        code = self._process.wait()
        self.resource["status"]["phase"] = "Failed" if code else "Succeeded"
        self.kill()

    def _check_volumes(self) -> None:
        empty = {one["name"] for one in self.resource["spec"].get("volumes", []) if "emptyDir" in one}
        for mount in self._container.get("volumeMounts", []):
            path = mount["mountPath"]
            if mount["name"] not in empty or not any(f"{path}/".startswith(f"{one}/") for one in _PRIVATE):
                raise ValueError(f"expected an emptyDir below one of {_PRIVATE}, found {mount}")

    def _value(self, variable: Json) -> str:
        if "value" in variable:
            return str(variable["value"])
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if path is None:
            # As Kubernetes has it: no value is an empty one.
            return ""
        found: Any = self.resource
        for part in path.split("."):
            found = found[part]
        return str(found)


class Kubelet:
    """Runs pods on a network, and says that they are on so many nodes, in turns."""

    def __init__(self, network: Network, image: Path, logs: Path, nodes: int) -> None:
        self._network, self._image, self._logs, self._nodes = network, image, logs, nodes
        self._lock = threading.Lock()
        self._started = 0

    def start(self, resource: Json) -> Pod:
        """Start a pod."""
        with self._lock:
            resource["spec"]["nodeName"] = f"node-{self._started % self._nodes + 1}"
            self._started += 1
            name = str(resource["metadata"]["name"])
            machine = self._network.add(name)
            return Pod(resource, machine, self._image, self._logs / f"{name}.log")
