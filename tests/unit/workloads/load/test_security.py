"""The plan's security section in every client's settings; secrets are never printed."""

from pathlib import Path

import pytest

from aftershock.errors import SettingError, WorkloadError
from aftershock.workloads.kafka.client.settings import ProducerSettings, parse
from aftershock.workloads.kafka.wire.security import PLAINTEXT, Security
from aftershock.workloads.load.assignment import parse_assignment
from aftershock.workloads.load.security import PLAINTEXT_SETTINGS, SecuritySettings, java_config, librdkafka_config

SECRET, KEY_SECRET = 'hunter2"\\', "opensesame"
ENVIRONMENT = {"PASSWORD": SECRET, "KEY_PASSWORD": KEY_SECRET}


def secured(tmp_path: Path) -> SecuritySettings:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"the {name}\n")
    return SecuritySettings(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        user="alice",
        password="${PASSWORD}",  # noqa: S106  # the name of an environment variable
        ca=tmp_path / "ca",
        certificate=tmp_path / "certificate",
        key=tmp_path / "key",
        key_password="${KEY_PASSWORD}",  # noqa: S106  # likewise
        verify_hostname=False,
    )


def test_librdkafkas_security_settings(tmp_path: Path) -> None:
    """Files by their paths, secrets by value, the host name unchecked as the plan says."""
    assert {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": SECRET,
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "certificate"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.key.password": KEY_SECRET,
        "ssl.endpoint.identification.algorithm": "none",
    } == librdkafka_config(secured(tmp_path).resolved(ENVIRONMENT))


def test_kafkas_security_settings(tmp_path: Path) -> None:
    """The container has none of the files, so it gets their contents; JAAS quotes are escaped."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="alice" password="hunter2\\"\\\\";',
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the ca\n",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": "the key\n",
        "ssl.keystore.certificate.chain": "the certificate\n",
        "ssl.key.password": KEY_SECRET,
    } == java_config(secured(tmp_path).resolved(ENVIRONMENT))


def test_plain_text_has_no_security_settings() -> None:
    """As for Aftershock's own clusters."""
    assert {} == librdkafka_config(PLAINTEXT) == java_config(PLAINTEXT_SETTINGS.resolved({}))


def test_a_missing_variable_is_named(tmp_path: Path) -> None:
    """The message names the variable to export; an empty value counts as missing."""
    with pytest.raises(WorkloadError, match="KEY_PASSWORD is not set"):
        secured(tmp_path).resolved({"PASSWORD": SECRET, "KEY_PASSWORD": ""})


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    """The secret is in no repr: of the value, of settings that contain it, or of an error about it."""
    security = secured(tmp_path).resolved(ENVIRONMENT)
    settings = parse(ProducerSettings, {"bootstrap.servers": "h:1", "security": security})
    with pytest.raises(SettingError) as refused:
        parse(ProducerSettings, {"bootstrap.servers": "h:1", "request.timeout.ms": security})
    for text in (repr(security), str(security), repr(settings), str(refused.value)):
        assert "hunter2" not in text
        assert KEY_SECRET not in text


def test_an_assignment_holds_variable_names_only(tmp_path: Path) -> None:
    """The file beside a worker's spool names the variables, and reads back to an equal value."""
    told = (
        '{"op": "consume", "run_id": "r", "origin_ns": 0, "worker": "w", "workload": "w", "arm": "a", "topic": "t", '
        '"topic_id": "i", "partitions": 1, "bootstrap": "h:1", "rack": "a", "spool": "s", "events": "e", '
        f'"security": {secured(tmp_path).model_dump_json()}}}'
    )
    again = parse_assignment(parse_assignment(told).model_dump_json())
    assert secured(tmp_path) == again.security


def test_the_tls_context_is_created_once_if_needed(tmp_path: Path) -> None:
    """Creating a context reads all authorities; a missing file is an OSError before the run."""
    encrypted = Security("SSL")
    assert encrypted.tls is encrypted.tls is not None
    assert PLAINTEXT.tls is None
    with pytest.raises(OSError, match="No such file"):
        _ = Security("SSL", ca=tmp_path / "none").tls
