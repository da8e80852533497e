"""Decorators that turn blocking operations into coroutines: each call runs in a thread."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

Self = TypeVar("Self")
P = ParamSpec("P")
R = TypeVar("R")


def in_thread(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, R]]:
    """Turn a blocking method into a coroutine method that runs in a thread."""

    @wraps(method)
    async def run(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    return run


def delegate(
    part: str, operation: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return a coroutine method that calls ``operation(attribute, …)`` in a thread, for an attribute of ``self``.

    ``part`` is the attribute's path, for example ``_cluster.admin``. If ``operation`` is a method, the attribute's
    method of that name is called, because an attached cluster has another class.
    """
    part_of, is_method = attrgetter(part), "." in operation.__qualname__

    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        function = getattr(part_of(self), operation.__name__) if is_method else partial(operation, part_of(self))
        result: R = await asyncio.to_thread(function, *args, **kwargs)
        return result

    return run
