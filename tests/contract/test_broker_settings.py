"""The settings that plans may use are those that Kafka's own jars define.

``python -m aftershock.tests.contract.test_broker_settings`` writes the list anew (it needs Maven and a JDK).
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from aftershock.faults.sections import broker_settings
from aftershock.faults.sections.broker_settings import known_settings, known_values, setting_refusal
from aftershock.harness.cluster.engine import DEFAULT_KAFKA

VERSIONS = (DEFAULT_KAFKA, "4.2.1", "4.1.2")
OLDER = "3.9.1"
PROGRAM = Path(__file__).parents[1] / "data" / "kafka_settings" / "SettingNames.java"
POM = Path(__file__).parents[2] / "harness" / "cluster" / "images" / "kafka" / "pom.xml"


def names_of(version: str, folder: Path, *options: str) -> dict[str, dict[str, str]]:
    """Return type and range of each setting, by owner and name, from the jars that Maven finds for a version of Kafka.

    Raises subprocess.CalledProcessError without such jars.
    """
    maven = ["mvn", "-q", *options, "-f", str(POM), "dependency:build-classpath", f"-Dkafka.version={version}"]
    subprocess.run([*maven, f"-Dmdep.outputFile={folder}/{version}"], check=True, capture_output=True)
    command = ["java", "-cp", (folder / version).read_text().strip(), str(PROGRAM)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    rows = [line.split(" ", 2) for line in lines]
    return {owner: {name: kind for of, name, kind in rows if of == owner} for owner in ("node", "topic")}


@pytest.mark.nightly
def test_the_list_is_that_of_kafka(tmp_path: Path) -> None:
    """Every setting of the default version is known with its values, and the type CLASS has the rule for classes."""
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip("no Maven, or no JDK")
    try:
        names = names_of(DEFAULT_KAFKA, tmp_path, "--offline")
    except subprocess.CalledProcessError:
        pytest.skip(f"Maven has no jars of Kafka {DEFAULT_KAFKA} on this machine")
    assert names["topic"]
    for owner, known in known_settings().items():
        assert set() == names[owner].keys() - known
    assert names == known_values()
    classes = [name for name, kind in names["node"].items() if kind == "CLASS"]
    assert classes
    assert [] == [name for name in classes if not setting_refusal("node", name, "evil.Class")]


if __name__ == "__main__":
    found: dict[str, set[str]] = {"node": set(), "topic": set()}
    with tempfile.TemporaryDirectory() as temporary:
        for release in VERSIONS:
            for of, settings in names_of(release, Path(temporary)).items():
                found[of] |= settings.keys()
        older = names_of(OLDER, Path(temporary))
        values = names_of(DEFAULT_KAFKA, Path(temporary))
    data = {
        "versions": VERSIONS,
        **{of: sorted(settings) for of, settings in found.items()},
        "new_in_4": {of: sorted(settings - older[of].keys()) for of, settings in found.items()},
        "values": {of: dict(sorted(kinds.items())) for of, kinds in values.items()},
    }
    Path(broker_settings.__file__).with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
