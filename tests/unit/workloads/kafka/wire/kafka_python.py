"""kafka-python's messages by API key: an implementation made from Kafka's own definitions, independently of kio."""

import importlib
import pkgutil
import warnings
from functools import cache
from typing import Any


@cache
def message_classes() -> dict[tuple[int, bool], Any]:
    """(api key, is a request) -> kafka-python's class."""
    with warnings.catch_warnings():
        # it reads its definitions with importlib.resources.read_text
        warnings.simplefilter("ignore", DeprecationWarning)
        protocol = importlib.import_module("kafka.protocol")
        for module in pkgutil.walk_packages(protocol.__path__, "kafka.protocol."):
            if ".old" not in module.name and not module.name.endswith("generate_stubs"):
                importlib.import_module(module.name)
        base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    return {(kind.API_KEY, kind.is_request()): kind for kind in base.__subclasses__() if kind.json}
