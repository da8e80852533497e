"""Recipes that build the programs around client libraries, at one version of the library each.

A program is built from the library's package registry into a folder of its own: a Python environment, a Go binary, a
folder of npm packages, a folder of jars, or a Rust binary. No install script of a package runs, except those of
``confluent-kafka-javascript`` and ``rdkafka``, which compile librdkafka.
"""

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode

from aftershock.errors import ProgramError
from aftershock.harness.cluster.images import build as images
from aftershock.harness.safety.lease import cache_folder

EDITION = 1
"""Part of the hash of every program; to be raised with a change that the hashes of the recipes do not see."""

FOLDER = "{folder}"
"""Word in a program's command for the folder in which it is built."""

_PROGRAMS = Path(__file__).parent / "programs"
_JAVA_SOURCES = Path(images.__file__).parent / "java_client"
_GO_MIN = (1, 22)  # each turn of a loop has variables of its own
_LOCAL_ERRORS = range(-200, 0)  # librdkafka's


class ProgramBuild(images.Build):
    """A running build of a program in the folder ``context``."""

    error = ProgramError

    def __init__(self, subject: str, log: Callable[[str], None], log_path: Path, scratch: Path) -> None:
        super().__init__(subject, log, log_path, scratch)
        self.context.mkdir()

    def copy(self, folder: Path, names: Sequence[str] = ("*",)) -> None:
        """Copy the program's sources into the folder in which it is built."""
        for name in names:
            for path in sorted(folder.glob(name)):
                if path.is_dir() and path.name != "__pycache__":
                    shutil.copytree(path, self.context / path.name)
                elif path.is_file():
                    shutil.copy(path, self.context)

    def write_error_names(self, folder: Path) -> None:
        """Write the names of Kafka's and librdkafka's error codes, which libraries know by other names."""
        names = {int(code): code.name.upper() for code in ErrorCode}
        names |= {code: name for code in _LOCAL_ERRORS if (name := KafkaError(code).name()).startswith("_")}
        (folder / "errors.json").write_text(json.dumps(names))


@dataclass(frozen=True)
class Recipe:
    """Recipe of a program: its sources, the function that builds it and returns its command, and the usual time."""

    sources: Sequence[Path]
    build: Callable[[ProgramBuild, str], Sequence[str]]
    build_s: int
    of_interpreter: bool = False  # the built program needs this very Python

    @property
    def digest(self) -> str:
        """Hash of the program's sources and of its recipe, a change of which needs another build."""
        digest = sha256(
            f"{EDITION} {sys.executable} {sys.version}".encode() if self.of_interpreter else b"%d" % EDITION
        )
        digest.update(inspect.getsource(getattr(self.build, "func", self.build)).encode())
        found = [path for source in self.sources for path in (source.rglob("*") if source.is_dir() else [source])]
        for path in sorted(found):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()


def go(program: str, module: str, build_s: int, *, older: Mapping[str, str] = {}) -> Recipe:
    """Return the recipe of a Go program, which imports the library's ``module``.

    ``older`` maps the first parts of versions to the path that the module had then.
    """
    return Recipe(_go_sources(program), partial(_build_go, program, module, older), build_s)


def _go_sources(program: str) -> list[Path]:
    return [_PROGRAMS / "go" / "pipe", _PROGRAMS / "go" / program]


def _build_go(program: str, module: str, older: Mapping[str, str], build: ProgramBuild, version: str) -> Sequence[str]:
    lay_out_go(build, program, module, older, version)
    compile_go(build, program, {"CGO_ENABLED": "0"})
    return (f"{FOLDER}/program",)


def lay_out_go(build: ProgramBuild, program: str, module: str, older: Mapping[str, str], version: str) -> None:
    """Copy a program's sources, and write its ``go.mod`` for a version of the library's module."""
    build.require_command("go", "golang-go")
    running = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"go(\d+)\.(\d+)", running)
    if not found or (int(found[1]), int(found[2])) < _GO_MIN:
        raise images.StepError(f"the program needs Go {'.'.join(map(str, _GO_MIN))} or later, not {running.strip()}")
    build.copy(_PROGRAMS / "go", ("pipe", program))
    build.write_error_names(build.context / "pipe")
    path = next((path for start, path in older.items() if version.startswith(start)), module)
    for source in (build.context / program).glob("*.go"):
        source.write_text(re.sub(rf'"{module}(?=["/])', f'"{path}', source.read_text()))
    lines = ("module aftershock/clients", f"go {found[1]}.{found[2]}", f"require {path} v{version}")
    (build.context / "go.mod").write_text("\n".join(lines) + "\n")


def compile_go(build: ProgramBuild, program: str, settings: Mapping[str, str], tags: str = "newest") -> None:
    """Compile a Go program; without the files that only newer versions of its library have, if need be."""
    environment = {
        "GOTOOLCHAIN": "local",  # no toolchain is downloaded: an older Go ends with a message that names the version
        "GOMODCACHE": str(build.scratch / "modules"),  # a module with a library in C takes 100 MB
        "GOCACHE": str(cache_folder() / "go" / "build"),
        "GOFLAGS": "-mod=mod -modcacherw -buildvcs=false",
        **settings,
    }
    command: list[str | Path] = ["go", "build", "-C", build.context, "-o", build.context / "program"]
    try:
        build.run([*command, "-tags", tags, f"./{program}"], environment)
    except images.StepError:
        if not any("go:build newest" in source.read_text() for source in (build.context / program).glob("*.go")):
            raise
        build.note("=== without what only newer versions have")
        build.run([*command, f"./{program}"], environment)


_CONFLUENT = "github.com/confluentinc/confluent-kafka-go"
_NEWEST_BINDING = "2.15.1"  # of the Go module, with the headers for newer releases of librdkafka


def librdkafka() -> Recipe:
    """Return the recipe of librdkafka, which the Go module of the same version contains.

    Releases that the module does not have come from the Python package of the same version.
    """
    return Recipe(_go_sources("librdkafka"), _build_librdkafka, 60)


def _build_librdkafka(build: ProgramBuild, version: str) -> Sequence[str]:
    build.require_command("gcc", "gcc", "libc6-dev")
    module, older = f"{_CONFLUENT}/v2", {"1.": _CONFLUENT}
    lay_out_go(build, "librdkafka", module, older, version)
    try:
        compile_go(build, "librdkafka", {"CGO_ENABLED": "1"})
    except images.StepError:
        if _numbers(version) <= _numbers(_NEWEST_BINDING):
            raise
    else:
        return (f"{FOLDER}/program",)
    build.note("=== with the library in the Python package")
    wheel = build.scratch / "wheel"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--target", wheel)
    build.run([*pip, "--no-deps", "--only-binary", ":all:", f"confluent-kafka~={version}"])
    shutil.copytree(wheel / "confluent_kafka.libs", build.context / "lib")
    (library,) = (build.context / "lib").glob("librdkafka-*.so*")
    build.run(["go", "mod", "edit", f"-require={module}@v{_NEWEST_BINDING}", build.context / "go.mod"])
    headers = build.scratch / "include" / "librdkafka"
    headers.mkdir(parents=True)
    modules = build.scratch / "modules" / "github.com" / "confluentinc" / "confluent-kafka-go"
    build.run(
        ["go", "-C", build.context, "mod", "download", f"{module}@v{_NEWEST_BINDING}"],
        {"GOMODCACHE": str(build.scratch / "modules"), "GOFLAGS": "-mod=mod -modcacherw"},
    )
    for header in (modules / f"v2@v{_NEWEST_BINDING}" / "kafka" / "librdkafka_vendor").glob("*.h"):
        shutil.copy(header, headers)
    told = build.scratch / "pkg-config"  # what pkg-config would tell of an installed librdkafka
    told.write_text(f'#!/bin/sh\ncase "$*" in *--libs*) echo -L{library.parent} -l:{library.name};; esac\n')
    told.chmod(0o755)
    settings = {
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": f"-I{headers.parent}",
        "CGO_LDFLAGS": f"-Wl,-rpath-link,{library.parent}",
        "PKG_CONFIG": str(told),
    }
    compile_go(build, "librdkafka", settings, "dynamic")
    return ("env", f"LD_LIBRARY_PATH={FOLDER}/lib", f"{FOLDER}/program")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def python(program: str, package: str) -> Recipe:
    """Return the recipe of a Python program, which has an environment of its own with this package."""
    sources = [_PROGRAMS / "python" / f"{name}.py" for name in ("protocol", program)]
    return Recipe(sources, partial(_build_python, sources, package), 15, of_interpreter=True)


def _build_python(sources: Sequence[Path], package: str, build: ProgramBuild, version: str) -> Sequence[str]:
    environment = build.context / "environment"
    build.run([sys.executable, "-m", "venv", environment])
    pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    build.run([*pip, "install", "--only-binary", ":all:", f"{package}=={version}"])
    for source in sources:
        shutil.copy(source, build.context)
    build.write_error_names(build.context)
    return (f"{FOLDER}/environment/bin/python", f"{FOLDER}/{sources[-1].name}")


_JAVA_EXCLUDED = ("Benchmark", "HighestFollower", "Piping", "Sharing")  # need more than the jar of Kafka's clients


def java() -> Recipe:
    """Return the recipe of Kafka's own client, with the sources of its image and the jars of one version."""
    return Recipe([_JAVA_SOURCES / "aftershock", _PROGRAMS / "java"], _build_java, 20)


def _build_java(build: ProgramBuild, version: str) -> Sequence[str]:
    build.require_command("java", "openjdk-17-jre-headless")
    build.copy(_PROGRAMS / "java")
    build.maven(f"-Dkafka.version={version}")
    (compiler,) = (build.context / "libs").glob("ecj-*.jar")  # a compiler that needs no JDK
    compiler = compiler.rename(build.scratch / compiler.name)
    sources = [path for path in (_JAVA_SOURCES / "aftershock").glob("*.java") if path.stem not in _JAVA_EXCLUDED]
    libraries = ":".join(map(str, sorted((build.context / "libs").glob("*.jar"))))
    # a method that needs a newer version is compiled to an error, which ends the program when it is called
    options = ("-17", "-proc:none", "-nowarn", "-proceedOnError", "-cp", libraries, "-d", build.context / "classes")
    try:
        build.run(["java", "-jar", compiler, *options, *sorted(sources)])
    except images.StepError:
        if not (build.context / "classes" / "aftershock" / "Main.class").exists():
            raise
    memory = ("-Xmx64m", "-Xss512k", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")
    logging = f"-Dlog4j2.configurationFile=file:{FOLDER}/log4j2.properties"
    shutil.copy(_JAVA_SOURCES / "log4j2.properties", build.context)
    return ("java", *memory, logging, "-cp", f"{FOLDER}/classes:{FOLDER}/libs/*", "aftershock.Main")


def node(program: str, package: str, build_s: int, *, compiles: bool = False) -> Recipe:
    """Return the recipe of a program for Node.js, beside which this package is installed, and compiled if need be."""
    sources = [_PROGRAMS / program, _NODE_PROTOCOL]
    return Recipe(sources, partial(_build_node, sources, package, compiles), build_s)


_NODE_PROTOCOL = _PROGRAMS / "kafkajs" / "protocol.js"


def _build_node(
    sources: Sequence[Path], package: str, compiles: object, build: ProgramBuild, version: str
) -> Sequence[str]:
    for command in ("node", "npm"):
        build.require_command(command, "nodejs", "npm")
    build.copy(sources[0])
    shutil.copy(_NODE_PROTOCOL, build.context)
    build.write_error_names(build.context)
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--no-save", "--no-update-notifier", "--ignore-scripts")
    (build.context / "package.json").write_text('{"private": true}\n')
    build.run(["npm", "install", *quiet, "--prefix", build.context, f"{package}@{version}"])
    if compiles:
        _compile_addon(build, build.context / "node_modules" / package)
    return ("node", f"{FOLDER}/client.js")


def _compile_addon(build: ProgramBuild, folder: Path) -> None:
    """Compile a package's addon with the headers of the system's Node.js, and with its libraries."""
    for command in ("g++", "make"):
        build.require_command(command, "g++", "make")
    run = ("node", "-p", "process.execPath")
    prefix = Path(subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()).parents[1]
    if not (prefix / "include" / "node" / "node.h").exists():
        raise images.StepError(
            f"the headers of Node.js are not in {prefix / 'include' / 'node'}; install them (libnode-dev on Debian and "
            "Ubuntu), or a Node.js that has them"
        )
    npm = Path(shutil.which("npm") or "npm").resolve().parents[1]
    gyp = npm / "node_modules" / "node-gyp" / "bin" / "node-gyp.js"
    if not gyp.exists():
        raise images.StepError(f"npm has no node-gyp in {gyp}; install npm from its own package")
    # one job, because the addon does not wait for its configuration
    for step in ("configure", "build"):
        build.run(["node", gyp, step, "-C", folder, f"--nodedir={prefix}"], {"CKJS_LINKING": "dynamic", "JOBS": "1"})


def rust(program: str, crate: str, build_s: int) -> Recipe:
    """Return the recipe of a Rust program with this crate, which contains librdkafka."""
    return Recipe([_PROGRAMS / program], partial(_build_rust, program, crate), build_s)


def _build_rust(program: str, crate: str, build: ProgramBuild, version: str) -> Sequence[str]:
    for tool in ("cargo", "gcc", "make"):
        build.require_command(tool, tool)
    build.copy(_PROGRAMS / program)
    build.write_error_names(build.context)
    manifest = f"""\
[package]
name = "program"
version = "0.0.0"
edition = "2021"

[features]
newest = []

[dependencies]
base64 = "0.22"
libc = "0.2"
{crate} = {{ version = "={version}", default-features = false, features = ["libz"] }}
serde_json = "1"
"""
    (build.context / "Cargo.toml").write_text(manifest)
    target = build.scratch / "target"
    environment = {"LIBRARY_VERSION": version, "CARGO_TARGET_DIR": str(target)}
    command: list[str | Path] = ["cargo", "build", "--release", "--manifest-path", build.context / "Cargo.toml"]
    try:
        build.run([*command, "--features", "newest"], environment)
    except images.StepError:
        build.note("=== with the interface of older versions")
        build.run(command, environment)
    shutil.copy(target / "release" / "program", build.context)
    return (f"{FOLDER}/program",)
