"""Coroutine methods made from blocking functions, which run in a thread."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

Self = TypeVar("Self")
P = ParamSpec("P")
R = TypeVar("R")


def in_thread(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, R]]:
    @wraps(method)
    async def run(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    return run


def delegate(
    part: str, operation: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return a coroutine method that calls ``operation(self.<part>, …)`` in a thread.

    ``part`` is the path of an attribute, for example ``_cluster.admin``. A method given as ``operation`` is looked up
    by name in the attribute, whose class may override the method.
    """
    part_of, is_method = attrgetter(part), "." in operation.__qualname__

    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        function = getattr(part_of(self), operation.__name__) if is_method else partial(operation, part_of(self))
        result: R = await asyncio.to_thread(function, *args, **kwargs)
        return result

    return run
