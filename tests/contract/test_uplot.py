"""The chart library in the package is the npm release, byte for byte, with its licence."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from importlib import resources
from pathlib import Path

import pytest

FOLDER = resources.files("aftershock.results.report").joinpath("uplot")
VERSION = "1.6.32"
INTEGRITY = "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
"""Of the release's archive, as npm's registry has it."""
FILES = {
    "LICENSE": ("LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    "uPlot.iife.min.js": ("dist/uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
    "uPlot.min.css": ("dist/uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
}
"""By name in the package: path in the release, and SHA-256."""


def test_the_files_are_those_that_were_checked() -> None:
    """Nothing was edited, added or left out; the script names its version and has no eval, which the page forbids."""
    names = {path.name for path in FOLDER.iterdir()}
    assert {*FILES, "VERSION"} == names
    for name, (_, digest) in FILES.items():
        assert digest == hashlib.sha256(FOLDER.joinpath(name).read_bytes()).hexdigest(), name
    assert f"uplot {VERSION}\n" == FOLDER.joinpath("VERSION").read_text()
    script = FOLDER.joinpath("uPlot.iife.min.js").read_text(encoding="ascii")
    assert f"(v{VERSION})" in script
    assert not re.search(r"\beval\(|new Function|</script", script)
    assert "MIT License" in FOLDER.joinpath("LICENSE").read_text()


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm, to fetch the release")
def test_npm_s_release_has_the_same_files(tmp_path: Path) -> None:
    """npm checks the archive against its registry; the archive's digest and its files are those recorded here."""
    command = ["npm", "pack", f"uplot@{VERSION}", "--json", "--pack-destination", str(tmp_path)]
    packed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    if packed.returncode and re.search("ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|network", packed.stderr):
        pytest.skip("npm reaches no registry")
    assert packed.returncode == 0, packed.stderr
    (about,) = json.loads(packed.stdout)
    archive = tmp_path / about["filename"]
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    assert f"sha512-{digest}" == INTEGRITY
    with tarfile.open(archive) as release:
        for name, (path, sha256) in FILES.items():
            content = release.extractfile(f"package/{path}")
            assert content
            assert sha256 == hashlib.sha256(content.read()).hexdigest(), name
