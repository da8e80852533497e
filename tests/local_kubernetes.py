"""The Kubernetes cluster of ``ci/kubernetes``, for tests."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CI = Path(__file__).parents[1] / "ci" / "kubernetes"


@contextmanager
def running() -> Iterator[str]:
    """Run a cluster until the block ends, with its kubeconfig in the environment; one that ran before stays.

    Yields the path of the kubeconfig.
    """
    was_up = subprocess.run([CI, "status"], capture_output=True, check=False).returncode == 0
    kubeconfig = subprocess.run([CI, "up"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = kubeconfig
    try:
        yield kubeconfig
    finally:
        if before is None:
            del os.environ["KUBECONFIG"]
        else:
            os.environ["KUBECONFIG"] = before
        if not was_up:
            subprocess.run([CI, "down"], check=True)
