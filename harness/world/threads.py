"""Blocking operations as coroutines of a world: each call runs in a thread, so that the event loop stays free."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

Self = TypeVar("Self")
P = ParamSpec("P")
R = TypeVar("R")


def in_thread(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, R]]:
    """Make a blocking method a coroutine that runs in a thread."""

    @wraps(method)
    async def run(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    return run


def delegate(
    part: str, operation: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return a method that calls ``operation`` in a thread, with a part of the world as its first argument.

    ``part``: the path of that attribute, for example ``_cluster.admin``. A method is looked up by its name, because the
    parts of an attached cluster have other classes.
    """
    part_of, is_method = attrgetter(part), "." in operation.__qualname__

    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        function = getattr(part_of(self), operation.__name__) if is_method else partial(operation, part_of(self))
        result: R = await asyncio.to_thread(function, *args, **kwargs)
        return result

    return run
