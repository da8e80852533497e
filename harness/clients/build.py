"""Programs around client libraries at chosen versions, which are built once into the user's cache folder.

A program's folder is named by client, version and a hash of its recipe and sources, so that a new release of Aftershock
builds its programs anew. Only one process at a time builds a program; other processes wait for it.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from aftershock.errors import Log, ProgramError
from aftershock.harness.clients.catalogue import CATALOGUE
from aftershock.harness.clients.recipes import FOLDER, ProgramBuild
from aftershock.harness.safety.lease import Lock, cache_folder, hold

_RECORD = "built.json"
_DESCRIBE_S = 60


@dataclass(frozen=True)
class Program:
    """Built program: its command line, and what this version of its library lacks, with the reasons."""

    client: str
    version: str
    command: tuple[str, ...]
    lacks: Mapping[str, str]
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.client}@{self.version}"


def folder_of(client: str, version: str) -> Path:
    """Return the folder in which a program is built, or would be."""
    return cache_folder() / "clients" / f"{client}-{version}-{CATALOGUE[client].recipe.digest[:10]}"


def find(client: str, version: str) -> Program | None:
    """Return a program that is built; None if it is not."""
    return _read(folder_of(client, version))


def _read(folder: Path) -> Program | None:
    try:
        record = json.loads((folder / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    command = tuple(word.replace(FOLDER, str(folder)) for word in record["command"])
    return Program(record["client"], record["version"], command, record["lacks"], folder)


def built(client: str, version: str, log: Log) -> Program:
    """Return a program, which is built if it is not in the cache.

    Raises ProgramError, with the last lines of the build and the versions that are known to work, if the version is not
    in its registry or does not build, or if the built library reports another version.
    """
    library, folder, subject = CATALOGUE[client], folder_of(client, version), f"{client} {version}"
    if program := _read(folder):
        return program
    builds = cache_folder() / "builds"
    try:
        for needed in (builds, folder.parent):
            needed.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProgramError(f"can't build {subject} in {folder.parent}: {error}; make the folder writable") from error
    waiting = cache(partial(log, f"building {subject}: waiting for another process that builds it"))
    with hold(Lock(builds / f"client-{client}-{version}.lock"), subject, waiting):
        if program := _read(folder):
            return program
        known = f"versions that are known to work: {', '.join(library.known)} (from {library.registry})"
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            build = ProgramBuild(subject, log, builds / f"client-{client}-{version}.log", Path(scratch))
            try:
                with build.step("program and library", library.recipe.build_s):
                    command = library.recipe.build(build, version)
                here = tuple(word.replace(FOLDER, str(build.context)) for word in command)
                description = describe(here, f"{client} {version}", {})
            except ProgramError as error:
                raise ProgramError(f"{error}\n{known}") from error
            if description["version"] != version:
                raise ProgramError(
                    f"{client} {version} was asked for, and the library that was built reports version "
                    f"{description['version'] or 'none'}: name that version; {known}"
                )
            record = {"client": client, "version": version, "command": command, "lacks": description["lacks"] or {}}
            (build.context / _RECORD).write_text(json.dumps(record, indent=1))
            if folder.exists():  # without a record
                shutil.rmtree(folder)
            build.context.rename(folder)
    program = _read(folder)
    if program is None:
        raise ProgramError(f"{folder} was built and is gone: build {subject} again")
    return program


def describe(command: tuple[str, ...], name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a program tells of its library: ``version``, ``lacks``, and why it has ``refused`` the settings."""
    try:
        ended = subprocess.run(
            [*command, "--describe", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_DESCRIBE_S,
        )
        description: dict[str, Any] = json.loads(ended.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramError(f"the program of {name} does not start: {error}") from error
    except ValueError as error:
        lines = "".join(f"\n    {line}" for line in ended.stderr.splitlines()[-5:]) or " none"
        raise ProgramError(
            f"the program of {name} ended with status {ended.returncode}; the last lines of its standard error:{lines}"
        ) from error
    return {"lacks": {}, "refused": None, **description}


def programs_here() -> Iterator[Program]:
    """Yield the programs that are built, also those of other releases of Aftershock, in the order of their names."""
    folders = sorted(record.parent for record in (cache_folder() / "clients").glob(f"*/{_RECORD}"))
    yield from filter(None, map(_read, folders))


def size_bytes(folder: Path) -> int:
    """Return the size of a built program."""
    return sum(os.lstat(Path(place) / name).st_size for place, _, names in os.walk(folder) for name in names)
