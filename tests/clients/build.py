"""Client programs of tests: the shipped ones at the newest version that is known to work, and programs in Java."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aftershock.errors import ProgramError
from aftershock.harness.clients.build import Program, built
from aftershock.harness.clients.catalogue import CATALOGUE
from aftershock.harness.cluster.engine import DEFAULT_KAFKA
from aftershock.harness.safety.lease import cache_folder

HERE = Path(__file__).parent


class Missing(Exception):  # noqa: N818  # the client is skipped, which is not an error
    """A tool that builds a client is not on this machine."""


@dataclass(frozen=True)
class Client:
    """Shipped program around a library at one version; ``program`` raises ``Missing`` if a tool is not here."""

    name: str
    library: str
    version: str

    @property
    def program(self) -> Program:
        try:
            return built(self.name, self.version, print)
        except ProgramError as error:
            if "not on the PATH" in str(error):
                raise Missing(str(error)) from error
            raise

    @property
    def command(self) -> list[str]:
        return [*self.program.command]


CLIENTS = tuple(Client(name, library.title, library.known[-1]) for name, library in CATALOGUE.items())


def java_program(folder: str, main_class: str) -> list[str]:
    """Return the command of a program in Java; the folder's programs are compiled together with Kafka's client."""
    pom, *sources = [HERE / folder / "pom.xml", *sorted((HERE / folder).glob("*.java"))]
    digest = sha256(DEFAULT_KAFKA.encode() + b"".join(path.read_bytes() for path in (pom, *sources))).hexdigest()
    cache = cache_folder() / "test-programs"
    built_here = cache / f"{folder}-{digest[:12]}"
    if missing := next((tool for tool in ("java", "mvn") if not shutil.which(tool)), None):
        raise Missing(f"{missing} is not on the PATH; install it to run this program")
    if not built_here.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            target = Path(scratch, "built")
            maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", pom, f"-Dkafka.version={DEFAULT_KAFKA}")
            subprocess.run([*maven, "dependency:copy-dependencies", f"-DoutputDirectory={target}"], check=True)
            (compiler,) = target.glob("ecj-*.jar")  # a compiler that needs no JDK, as for the project's own client
            libraries = ":".join(map(str, target.glob("*.jar")))
            options = ("-17", "-proc:none", "-nowarn", "-cp", libraries, "-d", target)
            subprocess.run(["java", "-jar", compiler, *options, *sources], check=True)
            target.rename(built_here)
    memory = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    return ["java", *memory, "-cp", f"{built_here}:{built_here}/*", main_class]
