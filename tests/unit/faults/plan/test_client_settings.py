"""Client settings that plans may use."""

import confluent_kafka
import pytest

from aftershock.faults.plan.client_settings import LIBRDKAFKA_SETTINGS, PLAN_KEY_FOR, refusal


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("plugin.library.paths", "loads code"),
        ("ssl.providers", "load code"),
        ("ssl.engine.location", "load code"),
        ("ssl.ca.location", "read files"),
        ("ssl.keystore.location", "read files"),
        ("https.ca.location", "read files"),
        ("sasl.kerberos.kinit.cmd", "runs a command"),
        ("sasl.kerberos.keytab", "read files"),
        ("sasl.oauthbearer.token.endpoint.url", "connect elsewhere"),
        ("sasl.oauthbearer.assertion.private.key.file", "read files"),
        ("offset.store.path", "write files"),
        ("debug", "floods the client's log"),
        ("log_level", "log"),
        ("error_cb", "takes code"),
        ("socket_cb", "takes code"),
        ("bootstrap.servers", "is set by the harness"),
        ("client.id", "is set by the harness"),
        ("security.protocol", "is set by the harness"),
        ("acks", "use `acks` under `produce`"),
        ("enable.idempotence", "use `idempotence` under `produce`"),
        ("group.id", "use `group` under `consume`"),
        ("client.rack", "use `client_rack` of the arm"),
        ("retry.backof.ms", "did you mean `retry.backoff.ms`"),
        ("a.setting.of.the.future", "not a librdkafka setting that plans may use"),
    ],
)
def test_refused(setting: str, why: str) -> None:
    """Settings that load code, run commands, touch files or belong to the harness are refused with the reason."""
    assert why in str(refusal(setting))


def test_everything_not_allowed_is_refused() -> None:
    """The rule is an allowlist, so unknown names are refused."""
    assert refusal("x") is not None
    assert not LIBRDKAFKA_SETTINGS & PLAN_KEY_FOR.keys()


def test_share_groups_are_for_kafkas_own_client() -> None:
    """`share` is a setting of the Java client only, which has share groups."""
    assert refusal("share", "java") is None
    assert all(refusal("share", client) for client in ("confluent", "reference"))


def is_unknown(setting: str) -> bool:
    try:
        confluent_kafka.Consumer({"group.id": "g", setting: "no such value"})
    except confluent_kafka.KafkaException as error:
        return "No such configuration property" in str(error)
    return False


@pytest.mark.parametrize("setting", sorted(LIBRDKAFKA_SETTINGS))
def test_librdkafka_knows_it(setting: str) -> None:
    """librdkafka knows each allowed name: it may refuse the value, but not the name."""
    assert not is_unknown(setting)


def test_librdkafka_tells_unknown_names() -> None:
    """The oracle of the previous test rejects an invented name."""
    assert is_unknown("retry.backof.ms")
