"""Check of the prerequisites of a run on this machine. It changes nothing."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from aftershock.errors import EngineError
from aftershock.faults.kinds.registry import EXTERNAL
from aftershock.harness.cluster import engine

_JAVA_MIN = 17
_MEMORY_GIB_MIN = 4
_DISK_GIB_MIN = 5
_GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """Result of one check; ``detail`` says what to do if it is not ``ok``."""

    what: str
    ok: bool
    detail: str


def examine() -> list[Finding]:
    """Check the engine, its images, Java, memory, disk, and the fault kinds that other packages bring."""
    return [*_engine(), _java(), *_machine(), *_kinds()]


def _engine() -> list[Finding]:
    try:
        client = engine.connect()
    except EngineError as error:
        return [Finding("Docker engine", ok=False, detail=str(error))]
    names = ", ".join(image.name for image in engine.images_here(client))
    missing = "no local images yet: a run pulls or builds them, or `aftershock images --ensure` does so now"
    return [
        Finding("Docker engine", ok=True, detail=str(client.version()["Version"])),
        Finding("images", ok=True, detail=names or missing),
    ]


def _java() -> Finding:
    advice = f"Spark needs Java {_JAVA_MIN} or later; install one (openjdk-17-jre-headless) or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java:
        return Finding("Java", ok=False, detail=f"not found; {advice}")
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=20).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Java", ok=False, detail=f"{java} does not run ({error}); {advice}")
    version = re.search(r'version "(\d+)', output)
    ok = version is not None and int(version[1]) >= _JAVA_MIN
    first_line = output.splitlines()[0]
    return Finding("Java", ok=ok, detail=first_line if ok else f"{first_line}; {advice}")


def _machine() -> list[Finding]:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    memory = f"{memory_gib:.0f} GiB, {os.cpu_count()} cores"
    if memory_gib < _MEMORY_GIB_MIN:
        memory += f"; three brokers and Spark need {_MEMORY_GIB_MIN} GiB"
    disk_gib = shutil.disk_usage(Path.cwd()).free / _GIB
    disk = f"{disk_gib:.0f} GiB free in the current folder"
    if disk_gib < _DISK_GIB_MIN:
        disk += f"; images and a run need {_DISK_GIB_MIN} GiB"
    return [
        Finding("memory", ok=memory_gib >= _MEMORY_GIB_MIN, detail=memory),
        Finding("disk", ok=disk_gib >= _DISK_GIB_MIN, detail=disk),
    ]


def _kinds() -> list[Finding]:
    accepted = [
        Finding("fault kind", ok=True, detail=f"{kind} of {package}") for kind, package in EXTERNAL.packages.items()
    ]
    return [*accepted, *(Finding("fault kind", ok=False, detail=reason) for reason in EXTERNAL.refused.values())]
