"""What a run needs from this machine, looked at one by one; nothing is changed."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from aftershock.errors import EngineError
from aftershock.faults.kinds.registry import BROUGHT
from aftershock.harness.cluster import engine

_JAVA_MIN = 17
_MEMORY_GIB_MIN = 4
_DISK_GIB_MIN = 5
_GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing looked at; ``detail`` says what to do where it is not ``ok``."""

    what: str
    ok: bool
    detail: str


def examine() -> list[Finding]:
    """Look at the engine, its images, Java, memory and disk, and at kinds of faults that other packages bring."""
    return [*_engine(), _java(), _memory(), _disk(), *_kinds()]


def _engine() -> list[Finding]:
    try:
        client = engine.connect()
    except EngineError as error:
        return [Finding("Docker engine", ok=False, detail=str(error))]
    images = engine.images_here(client)
    names = ", ".join(image.name for image in images)
    missing = "none here yet: a run pulls or builds them, or `aftershock images --ensure` does so now"
    return [
        Finding("Docker engine", ok=True, detail=str(client.version()["Version"])),
        Finding("images", ok=True, detail=names or missing),
    ]


def _java() -> Finding:
    advice = f"Spark needs Java {_JAVA_MIN} or later; install one (openjdk-17-jre-headless) or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java:
        return Finding("Java", ok=False, detail=f"none found; {advice}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=20).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Java", ok=False, detail=f"{java} does not run ({error}); {advice}")
    version = re.search(r'version "(\d+)', said)
    ok = version is not None and int(version[1]) >= _JAVA_MIN
    return Finding("Java", ok=ok, detail=said.splitlines()[0] if ok else f"{said.splitlines()[0]}; {advice}")


def _memory() -> Finding:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    detail = f"{gib:.0f} GiB, {os.cpu_count()} cores"
    if gib < _MEMORY_GIB_MIN:
        detail += f"; three brokers and Spark need {_MEMORY_GIB_MIN} GiB"
    return Finding("memory", ok=gib >= _MEMORY_GIB_MIN, detail=detail)


def _disk() -> Finding:
    gib = shutil.disk_usage(Path.cwd()).free / _GIB
    detail = f"{gib:.0f} GiB free here"
    if gib < _DISK_GIB_MIN:
        detail += f"; images and a run need {_DISK_GIB_MIN} GiB"
    return Finding("disk", ok=gib >= _DISK_GIB_MIN, detail=detail)


def _kinds() -> list[Finding]:
    found = [Finding("fault kind", ok=True, detail=f"{kind} of {who}") for kind, who in BROUGHT.packages.items()]
    return [*found, *(Finding("fault kind", ok=False, detail=why) for why in BROUGHT.refused.values())]
