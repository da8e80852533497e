"""Names of built images: a tag ends with a hash of everything that went into its recipe.

So a changed recipe is a new image, an unchanged one is found again by any checkout, and no tag ever has to be trusted
to mean what it meant last week.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
"""Where the recipes' files are."""

REPOSITORY = "aftershock"
"""Built images are ``aftershock/<name>:<version>-<hash>``."""


def tag(name: str, version: str, paths: Iterable[Path], facts: Iterable[str] = ()) -> str:
    """The full name of an image built from the files below ``paths`` and the pinned ``facts`` (coordinates, flags)."""
    return f"{REPOSITORY}/{name}:{version}-{digest(paths, (version, *facts))}"


def digest(paths: Iterable[Path], facts: Iterable[str] = ()) -> str:
    """Ten hexadecimal digits that change with a file's name or content, and with each fact."""
    sum_ = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                _feed(sum_, file.relative_to(path.parent).as_posix().encode())
                _feed(sum_, file.read_bytes())
    for fact in facts:
        _feed(sum_, fact.encode())
    return sum_.hexdigest()[:10]


def _feed(sum_: "hashlib._Hash", part: bytes) -> None:
    # with its length in front, moving a byte from one part to the next changes the sum
    sum_.update(len(part).to_bytes(8, "big"))
    sum_.update(part)
