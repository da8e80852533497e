"""Spark servers from the PySpark package: a standalone master with workers, and a Connect server.

All servers listen on loopback ports chosen by the system and read from their logs. Each server ends with its ``with``
block.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
DEADLINE_S = 120
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """Yield the URL of a master with this number of workers, each with one core and 1 GB."""
    ours = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as open_:
        told = open_.enter_context(_running(folder / "master.log", "spark-class", [_deploy("master.Master"), *ours]))
        master = told(r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            ours_too = [*ours, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), master]
            command = [_deploy("worker.Worker"), *ours_too]
            told = open_.enter_context(_running(folder / f"worker-{number}.log", "spark-class", command))
            told(r"(Successfully registered with master)")
        yield master


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Yield the URL of a Connect server that computes in its own process."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": SMALL_JVM,
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = ["--master", "local[2]", *conf, "--class", service]
    with _running(folder / "connect.log", "spark-submit", command) as told:
        yield "sc://" + told(r"Spark Connect server started at: (\S+)")


def _deploy(name: str) -> str:
    return f"org.apache.spark.deploy.{name}"


@contextmanager
def _running(log: Path, program: str, arguments: list[str]) -> Iterator[Callable[[str], str]]:
    """Run a server while the block lasts, and yield a function that waits for a pattern in the server's log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    options = f"{SMALL_JVM} -Dspark.master.rest.enabled=false"
    env = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": options}
    with log.open("wb") as told:
        server = subprocess.Popen([HOME / "bin" / program, *arguments], stdout=told, stderr=told, env=env)
    try:
        yield lambda pattern: _told(server, log, pattern)
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _told(server: "subprocess.Popen[bytes]", log: Path, pattern: str) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and server.poll() is None:
        if result := re.search(pattern, log.read_text(errors="replace")):
            return result[1]
        time.sleep(0.1)
    raise AssertionError(f"no {pattern!r} within {DEADLINE_S} s in:\n{log.read_text(errors='replace')[-2000:]}")
