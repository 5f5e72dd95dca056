"""A stand-in for Kubernetes' API server: as much of its HTTP interface as Spark needs for executors in client mode.

It keeps pods, and gives each to a kubelet as soon as it is created. Whatever else Spark creates is taken and forgotten.
See https://kubernetes.io/docs/reference/using-api/api-concepts.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from .pods import Json, Kubelet, Pod

_PATH: Final = re.compile(r"/api/v1/namespaces/[^/]+/(?P<kind>[a-z]+)(/(?P<name>[^/]+))?$")
_GRACE_SECONDS: Final = 30
"""Of a pod that does not say how long it may take to end."""


class ApiServer:
    """Serves at ``url`` within its context; pods end with it."""

    def __init__(self, address: str, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self._lock = threading.Lock()
        self._version = 1
        self._pods: dict[str, Pod] = {}
        self._is_closing = False
        self._terminating: list[threading.Thread] = []
        self._server = ThreadingHTTPServer((address, 0), _handler(self))
        self.url = f"http://{address}:{self._server.server_port}"

    @property
    def pods(self) -> list[Pod]:
        """All pods that there are, in the order of their creation."""
        with self._lock:
            return list(self._pods.values())

    def create(self, resource: Json) -> Json | None:
        """Create a pod and start it; None once the server ends: nobody would end the pod."""
        metadata = resource["metadata"]
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
        with self._lock:
            if self._is_closing:
                return None
            pod = self._kubelet.start(resource)
            self._pods[pod.name] = pod
            return pod.resource

    def patch(self, name: str, change: Json) -> Json | None:
        """Change the labels of a pod."""
        with self._lock:
            pod = self._pods.get(name)
            if pod is None:
                return None
            labels = change.get("metadata", {}).get("labels", {})
            pod.resource["metadata"].setdefault("labels", {}).update(labels)
            return pod.resource

    def find(self, selector: str) -> Json:
        """List pods by their labels."""
        with self._lock:
            self._version += 1
            items = [pod.resource for pod in self._pods.values() if _has(pod.resource, selector)]
            return {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": str(self._version)},
                "items": items,
            }

    def delete(self, selected: Callable[[Pod], bool], grace_seconds: float | None = None) -> None:
        """Delete pods in order, in the background."""
        with self._lock:
            pods = [pod for pod in self._pods.values() if selected(pod)]
        for pod in pods:
            if "deletionTimestamp" not in pod.resource["metadata"]:
                pod.resource["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
                thread = threading.Thread(target=self._terminate, args=(pod, grace_seconds), daemon=True)
                self._terminating.append(thread)
                thread.start()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="api-server", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            self._is_closing = True
        for pod in self.pods:
            pod.kill()
        for thread in self._terminating:
            thread.join()

    def _terminate(self, pod: Pod, grace_seconds: float | None) -> None:
        own = pod.resource["spec"].get("terminationGracePeriodSeconds", _GRACE_SECONDS)
        pod.terminate(own if grace_seconds is None else grace_seconds)
        with self._lock:
            self._pods.pop(pod.name, None)


def _has(resource: Json, selector: str) -> bool:
    """Return whether a pod has the labels of a selector: ``a=b,c!=d``."""
    labels = resource["metadata"].get("labels", {})
    for one in filter(None, selector.split(",")):
        name, unequal, value = re.fullmatch(r"([^=!]+)(!?)==?(.*)", one).groups()  # type: ignore[union-attr]
        if (labels.get(name) == value) == bool(unequal):
            return False
    return True


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, name, query = self._asked()
            if kind == "pods" and name is None:
                self._answer(200, server.find(query.get("labelSelector", [""])[0]))
            elif kind == "pods" and (found := [pod for pod in server.pods if pod.name == name]):
                self._answer(200, found[0].resource)
            else:
                self._answer(404, _status("NotFound", 404))

        def do_POST(self) -> None:
            kind, _, _ = self._asked()
            body = self._body()
            created = server.create(body) if kind == "pods" else body
            if created is None:
                self._answer(503, _status("ServiceUnavailable", 503))
            else:
                self._answer(201, created)

        def do_PATCH(self) -> None:
            _, name, _ = self._asked()
            changed = server.patch(str(name), self._body())
            self._answer(200 if changed else 404, changed or _status("NotFound", 404))

        def do_DELETE(self) -> None:
            kind, name, query = self._asked()
            grace = self._body().get("gracePeriodSeconds")
            selector = query.get("labelSelector", [""])[0]
            if kind == "pods":
                server.delete(
                    lambda pod: pod.name == name if name else _has(pod.resource, selector),
                    grace_seconds=grace,
                )
            self._answer(200, _status("Success", 200))

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _asked(self) -> tuple[str, str | None, dict[str, list[str]]]:
            parts = urlsplit(self.path)
            found = _PATH.match(parts.path)
            return (found["kind"], found["name"], parse_qs(parts.query)) if found else ("", None, {})

        def _body(self) -> Json:
            size = int(self.headers.get("Content-Length") or 0)
            found: Any = json.loads(self.rfile.read(size)) if size else {}
            return dict(found) if isinstance(found, dict) else {}

        def _answer(self, code: int, body: Json) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _status(reason: str, code: int) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Success" if code < 400 else "Failure",
        "reason": reason,
        "code": code,
    }
