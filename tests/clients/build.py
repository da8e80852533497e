"""Clients of ``docs/EXEC.md`` under ``tests/clients``: their versions, and their builds in the user's cache."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from aftershock.harness.cluster.engine import DEFAULT_KAFKA

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aftershock" / "exec-clients"


class Missing(Exception):  # noqa: N818  # the client is skipped, which is not an error
    """A tool that builds a client is not on this machine."""


@dataclass(frozen=True)
class Client:
    """Client program; ``build`` returns its command, and raises ``Missing`` if a tool is not on this machine."""

    folder: str
    library: str
    version: str
    build: Callable[[str], list[str]]

    @property
    def command(self) -> list[str]:
        return self.build(self.folder)


def _require(tool: str, reason: str) -> None:
    if not shutil.which(tool):
        raise Missing(f"{tool} is not on the PATH, and {reason}; install it to examine this client")


def _run(command: Sequence[str | Path], **environment: str) -> None:
    result = subprocess.run(
        [str(word) for word in command],
        cwd=HERE,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"{command[0]} ended with status {result.returncode}:\n{result.stdout}")


def _python(folder: str) -> list[str]:
    return [sys.executable, str(HERE / folder / "client.py")]


def _go(folder: str) -> list[str]:
    _require("go", "the program is written in Go")
    # a toolchain is not downloaded: an older Go ends with a message that names the version
    _run(["go", "build", "-buildvcs=false", "-o", CACHE / folder, f"./{folder}"], GOTOOLCHAIN="local")
    return [str(CACHE / folder)]


def java_program(folder: str, main_class: str = "ExecClient") -> list[str]:
    """Return the command of a program in Java; the folder's programs are compiled together with Kafka's client."""
    _require("java", "the program is written in Java")
    pom, *sources = [HERE / folder / "pom.xml", *sorted((HERE / folder).glob("*.java"))]
    digest = sha256(DEFAULT_KAFKA.encode() + b"".join(path.read_bytes() for path in (pom, *sources))).hexdigest()
    built = CACHE / f"{folder}-{digest[:12]}"
    if not built.exists():
        _require("mvn", "Maven gets Kafka's Java client")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            target = Path(scratch, "built")
            maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", pom)
            goal = ("dependency:copy-dependencies", f"-DoutputDirectory={target}")
            _run([*maven, f"-Dkafka.version={DEFAULT_KAFKA}", *goal])
            (compiler,) = target.glob("ecj-*.jar")  # a compiler that needs no JDK, as for the project's own client
            libraries = ":".join(map(str, target.glob("*.jar")))
            _run(["java", "-jar", compiler, "-17", "-proc:none", "-nowarn", "-cp", libraries, "-d", target, *sources])
            target.rename(built)
    memory = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    return ["java", *memory, "-cp", f"{built}:{built}/*", main_class]


def _node(folder: str) -> list[str]:
    _require("node", "the program is written for Node.js")
    sources = sorted(path for path in (HERE / folder).iterdir() if path.suffix in {".js", ".json"})
    digest = sha256(b"".join(source.name.encode() + source.read_bytes() for source in sources)).hexdigest()
    built = CACHE / f"{folder}-{digest[:12]}"
    if not built.exists():
        _require("npm", "npm gets KafkaJS")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            target = Path(scratch, "built")
            target.mkdir()
            for source in sources:
                shutil.copy(source, target)
            quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--no-update-notifier")
            _run(["npm", "install", "--ignore-scripts", *quiet, "--prefix", target])
            target.rename(built)
    return ["node", str(built / "client.js")]


def _go_version(module: str) -> str:
    found = re.search(rf"^\s*{re.escape(module)} v(\S+)$", (HERE / "go.mod").read_text(), re.MULTILINE)
    assert found, f"{HERE / 'go.mod'} does not require {module}"
    return found[1]


def _node_version(folder: str, package: str) -> str:
    return str(json.loads((HERE / folder / "package.json").read_text())["dependencies"][package])


CLIENTS = (
    Client("franz_go", "franz-go", _go_version("github.com/twmb/franz-go"), _go),
    Client("sarama", "sarama", _go_version("github.com/IBM/sarama"), _go),
    Client("kafka_python", "kafka-python", version("kafka-python"), _python),
    Client("aiokafka", "aiokafka", version("aiokafka"), _python),
    Client("confluent_kafka", "confluent-kafka", version("confluent-kafka"), _python),
    Client("java", "Kafka's Java client", DEFAULT_KAFKA, java_program),
    Client("kafkajs", "KafkaJS", _node_version("kafkajs", "kafkajs"), _node),
)
