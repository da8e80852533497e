"""The class-data archive: classes as Java has loaded and checked them once, so that a JVM starts in half the time.

Half of a small judgement is the JVM reading ten thousand classes; AppCDS maps them from a file instead. The file
belongs to one Java, one PySpark and one folder of jars, and is named for them. Rules: it lies in the user's cache
(XDG_CACHE_HOME) and may be removed at any time; `aftershock images --ensure` makes it (``class_data_maker.py``);
without it, or with a bad one, all works as well and starts slower.
"""

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

import pyspark

JAVA_DEADLINE_S = 20.0


def options_here() -> tuple[str, ...]:
    """Java's option that uses the archive; none where there is no archive yet."""
    archive = archive_here()
    return (quoted("-XX:SharedArchiveFile", archive),) if archive and archive.is_file() else ()


def quoted(option: str, path: Path) -> str:
    """An option with a path, as Spark's launcher takes it apart again."""
    return f'"{option}={path}"' if " " in str(path) else f"{option}={path}"


@cache
def archive_here() -> Path | None:
    """Where the archive of this Java and PySpark lies or will lie; None where there is no Java, or no folder for it."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, timeout=JAVA_DEADLINE_S, check=True)
        folder = _cache()
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    key = hashlib.sha256(told.stderr + f"{pyspark.__version__}\n{jars.resolve()}".encode()).hexdigest()[:16]
    archive = folder / f"class-data-{pyspark.__version__}-{key}.jsa"
    return archive if not set(str(archive)) & set("\"'\\") else None  # the launcher would read these as its own


def _cache() -> Path:
    told = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(told) if Path(told).is_absolute() else Path.home() / ".cache"
    return home / "aftershock"


def refusal_of(archive: Path) -> Path:
    """The file that says that this Java makes no archive, so that nobody tries again."""
    return archive.with_suffix(".refused")
