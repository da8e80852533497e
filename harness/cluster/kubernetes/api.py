"""Access to the API of a Kubernetes cluster, by the official ``kubernetes`` client, with our errors.

The client's connection comes from a kubeconfig (``KUBECONFIG``, else ``~/.kube/config``), or from the service account
of the pod in which Aftershock runs. Objects travel as JSON data, so that manifests are what `kubectl` would apply. The
package is an extra, ``aftershock[kubernetes]``, and is imported only when a cluster on Kubernetes is used.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from aftershock.errors import AftershockError, ClusterError, EngineError

Object = Mapping[str, Any]
"""A Kubernetes object as JSON data."""

OLDEST = (1, 25)
"""Oldest version that is used: no vendor supports an older one, and policy/v1 (evictions) is the only one since."""

IN_CLUSTER = "in-cluster"
"""Name in the place of a context for the service account of the pod in which this process runs."""

_TIMEOUT_S = 20.0
_EXEC_S = 30.0
FORBIDDEN = 403
_GONE, _CONFLICT, _UNAUTHORISED = 404, 409, 401
_COLLECTIONS = {
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Event": ("/api/v1", "events"),
    "StorageClass": ("/apis/storage.k8s.io/v1", "storageclasses"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
}
_CLUSTER_WIDE = ("Namespace", "Node", "StorageClass")


class RefusedError(ClusterError):
    """The API server refused a request; ``status`` is the HTTP status, such as 404."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Executed(NamedTuple):
    """Result of a command in a container."""

    code: int
    output: str


class Api:
    """Client of a Kubernetes API server; methods raise RefusedError, or EngineError if the server does not answer.

    ``context`` is a context of the kubeconfig, None for its current one.
    """

    def __init__(self, context: str | None = None) -> None:
        try:
            from kubernetes import client, config  # noqa: PLC0415 -- an extra, which takes 0.4 s
        except ImportError as error:
            raise EngineError(
                "clusters on Kubernetes need the package `kubernetes`: pip install 'aftershock[kubernetes]'"
            ) from error
        configuration = client.Configuration()
        try:
            if context is None and "KUBERNETES_SERVICE_HOST" in os.environ and not _has_kubeconfig():
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                self.context = IN_CLUSTER
            else:
                contexts, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
                names = [item["name"] for item in contexts]
                if context is not None and context not in names:
                    raise EngineError(
                        f"the kubeconfig has no context {context}; its contexts are {', '.join(names) or 'none'}"
                    )
                self.context = context or current["name"]
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    context=self.context, client_configuration=configuration
                )
        except (config.ConfigException, OSError, KeyError, TypeError) as error:
            raise EngineError(
                f"no Kubernetes cluster is configured ({error}): set KUBECONFIG, or start a cluster for tests with: "
                "ci/kubernetes up"
            ) from error
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        self.url = configuration.host

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()

    # --- objects -------------------------------------------------------------------------------------------------

    def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        return self._json("GET", f"{_path(kind, namespace)}/{name}", f"get {_words(kind, namespace, name)}")

    def find(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        """Return an object, None if there is none."""
        try:
            return self.get(kind, namespace, name)
        except RefusedError as error:
            if error.status == _GONE:
                return None
            raise

    def objects(self, kind: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind that match a label selector, in one namespace or in all."""
        query = {"labelSelector": selector} if selector else {}
        items = self._json("GET", _path(kind, namespace), f"list {_words(kind, namespace)}", query)["items"]
        return list(items)

    def create(self, manifest: Object) -> dict[str, Any]:
        kind, namespace = manifest["kind"], manifest["metadata"].get("namespace")
        action = f"create {_words(kind, namespace, manifest['metadata']['name'])}"
        return self._json("POST", _path(kind, namespace), action, {}, manifest)

    def patch(self, kind: str, namespace: str | None, name: str, change: Object) -> dict[str, Any]:
        """Merge a change into an object (JSON merge patch)."""
        path, action = f"{_path(kind, namespace)}/{name}", f"patch {_words(kind, namespace, name)}"
        return self._json("PATCH", path, action, {}, change, "application/merge-patch+json")

    def delete(self, kind: str, namespace: str | None, name: str, *, grace_s: int | None = None) -> bool:
        """Delete an object; return False if there was none. Returns before the object is gone."""
        query = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self._json(
                "DELETE",
                f"{_path(kind, namespace)}/{name}",
                f"delete {_words(kind, namespace, name)}",
                query | {"propagationPolicy": "Background"},
            )
        except RefusedError as error:
            if error.status in (_GONE, _CONFLICT):
                return False
            raise
        return True

    def delete_pod(self, namespace: str, name: str, grace_s: int | None, *, evict: bool) -> None:
        """Delete a pod; with ``evict`` as a drain does, which a disruption budget may refuse (RefusedError)."""
        if not evict:
            self.delete("Pod", namespace, name, grace_s=grace_s)
            return
        options = {} if grace_s is None else {"deleteOptions": {"gracePeriodSeconds": grace_s}}
        manifest = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        path = f"{_path('Pod', namespace)}/{name}/eviction"
        self._json("POST", path, f"evict the pod {name}", {}, manifest | options)

    def log(self, namespace: str, pod: str, container: str, *, since: str = "") -> str:
        """Return the output of a pod's container, "" if it has none yet; ``since`` is a time in RFC 3339."""
        path = f"{_path('Pod', namespace)}/{pod}/log"
        query = {"container": container, **({"sinceTime": since} if since else {})}
        try:
            return self._request("GET", path, f"read the log of the pod {pod}", query).decode(errors="replace")
        except RefusedError:
            return ""

    # --- processes -----------------------------------------------------------------------------------------------

    @contextmanager
    def session(
        self, namespace: str, pod: str, container: str, command: Sequence[str], *, stdin: bool = False
    ) -> Iterator[Any]:
        """Run a command in a container during a block, which gets its ``WSClient`` (kubernetes.stream.ws_client).

        Raises RefusedError if the container does not run.
        """
        from kubernetes import client  # noqa: PLC0415
        from kubernetes.stream import stream  # noqa: PLC0415

        # a client of its own, because `stream` changes the client's methods while it connects
        core = client.CoreV1Api(client.ApiClient(self._configuration))
        action = f"run `{' '.join(' '.join(command).split())[:60]}…` in the pod {pod}"
        with _errors(action, self.url):
            session = stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                namespace,
                container=container,
                command=list(command),
                stdin=stdin,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            try:
                yield session
            except (ValueError, KeyError, TypeError) as error:  # the status is none, or the kubelet's words
                words = str(error).rpartition("base 10: ")[2] if isinstance(error, ValueError) else ""
                reason = words or "the connection ended without the command's status"
                raise RefusedError(f"can't {action}: {reason}", 0) from error
            finally:
                session.close()
                session.sock.shutdown()  # `close` leaves the socket of a connection that the server has ended

    def execute(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> Executed:
        """Run a command in a container, as its user; raise RefusedError if the container does not run."""
        with self.session(namespace, pod, container, command) as session:
            session.run_forever(timeout=_EXEC_S)
            words = f"run a command in the pod {pod}"
            if session.is_open():
                raise RefusedError(f"can't {words}: it did not end within {_EXEC_S:.0f} s", 0)
            # without a status the connection was cut, as when the container ends meanwhile; `read_all` drops it
            code = session.returncode
            output = session.read_all()
            if code is None:
                raise RefusedError(f"can't {words}: the connection ended without the command's status", 0)
        return Executed(int(code), output)

    # --- the cluster ---------------------------------------------------------------------------------------------

    def version(self) -> str:
        """Return the version of the API server; raise EngineError for one that is too old."""
        answer = self._json("GET", "/version", "read the version of the cluster")
        text = str(answer.get("gitVersion", ""))
        numbers = [int(part) for part in text.lstrip("v").split(".")[:2] if part.isdecimal()]
        if tuple(numbers) < OLDEST:
            raise EngineError(
                f"the Kubernetes cluster at {self.url} is {text or 'of an unknown version'}, and "
                f"{'.'.join(map(str, OLDEST))} or later is needed; upgrade it, or name another context"
            )
        return text

    def refused_verbs(self, namespace: str | None, needs: Iterable[tuple[str, str, str]]) -> list[str]:
        """Return what of ``needs`` the user may not do, as "verb resource"; each need is (verb, API group, resource).

        A subresource is written with its resource, such as ``pods/exec``.
        """
        refused = []
        for verb, group, resource in needs:
            name, _, subresource = resource.partition("/")
            attributes = {"verb": verb, "group": group, "resource": name, "subresource": subresource}
            if namespace is not None:
                attributes["namespace"] = namespace
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            if not self._json("POST", path, "review the user's permissions", {}, review)["status"]["allowed"]:
                refused.append(f"{verb} {resource}" + (f".{group}" if group else ""))
        return refused

    # --- requests ------------------------------------------------------------------------------------------------

    def _json(
        self,
        verb: str,
        path: str,
        action: str,
        query: Mapping[str, Any] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._request(verb, path, action, query, body, content_type))
        return answer

    def _request(
        self,
        verb: str,
        path: str,
        action: str,
        query: Mapping[str, Any] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        with _errors(action, self.url):
            method, url, headers, content, form = self._client.param_serialize(
                method=verb,
                resource_path=path,
                query_params=[*(query or {}).items()],
                header_params={"Accept": "application/json, */*", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(method, url, headers, content, form, _request_timeout=_TIMEOUT_S)
            data: bytes = response.read()  # type: ignore[no-untyped-call]
            if not 200 <= response.status < 300:  # noqa: PLR2004
                raise _refused(action, response.status, data, self.url)
            return data


def _has_kubeconfig() -> bool:
    return "KUBECONFIG" in os.environ or (Path.home() / ".kube" / "config").exists()


def _path(kind: str, namespace: str | None) -> str:
    root, plural = _COLLECTIONS[kind]
    return (
        f"{root}/{plural}" if namespace is None or kind in _CLUSTER_WIDE else f"{root}/namespaces/{namespace}/{plural}"
    )


def _words(kind: str, namespace: str | None, name: str = "") -> str:
    noun = f"the {kind} {name}" if name else f"objects of kind {kind}"
    return noun + (f" in the namespace {namespace}" if namespace and kind not in _CLUSTER_WIDE else "")


@contextmanager
def _errors(action: str, url: str) -> Iterator[None]:
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415
    from websocket import WebSocketException  # noqa: PLC0415

    try:
        yield
    except AftershockError:
        raise
    except ApiException as error:
        if error.status:
            raise _refused(action, int(error.status), error.body or str(error.reason or ""), url) from error
        raise RefusedError(f"can't {action}: {' '.join(str(error.reason or error).split())}", 0) from error
    except WebSocketException as error:
        raise RefusedError(f"can't {action}: the connection ended ({error})", 0) from error
    except (HTTPError, OSError) as error:
        raise EngineError(
            f"the Kubernetes API server at {url} does not answer ({error}): is the cluster up, and the context right?"
        ) from error


def _refused(action: str, status: int, body: Any, url: str) -> AftershockError:
    """Return the error for an answer of the API server, with the server's own words."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    with suppress(ValueError, TypeError, AttributeError):
        text = json.loads(text).get("message") or text
    text = " ".join(text.split())
    if status == _UNAUTHORISED:
        return EngineError(
            f"the Kubernetes API server at {url} does not accept the kubeconfig's credentials; renew them"
        )
    if status == FORBIDDEN:
        return RefusedError(
            f"can't {action}: {text}; `aftershock kubernetes rbac` prints the role that a run needs", status
        )
    return RefusedError(f"can't {action}: {text}", status)
