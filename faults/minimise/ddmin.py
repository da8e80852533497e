"""Delta debugging (Zeller & Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): ddmin over a tuple.

Rules. All items together fail, none of them does not: both are known before. First halves are tried; where neither
fails, what is left when one part of several is taken away, the parts getting smaller till they are single items. Then
no single item can be taken away (1-minimal). Parts alone beyond halves are not tried, as the paper does: with two
culprits far apart they all pass, and a run is dear.
"""

from collections.abc import Callable, Generator
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Items = tuple[Item, ...]


def ddmin(
    items: Items[Item], fails: Callable[[Items[Item]], Generator[Asked, Answer, bool]]
) -> Generator[Asked, Answer, Items[Item]]:
    """A 1-minimal subset that fails, its order kept; ``fails`` asks about one."""
    parts, asked = 2, set[Items[Item]]()
    while len(items) > 1:
        for subset in _smaller(items, parts):
            if subset in asked:  # two of three are also the larger half
                continue
            asked.add(subset)
            if (yield from fails(subset)):
                items, parts = subset, max(parts - 1, 2)
                break
        else:
            if parts == len(items):
                break
            parts = min(2 * parts, len(items))
    return items


def _smaller(items: Items[Item], parts: int) -> list[Items[Item]]:
    """The halves; of more parts, what is left without each."""
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    cuts = list(pairwise(bounds))
    if parts == 2:  # noqa: PLR2004 -- what is left without a half is the other half
        return [items[low:high] for low, high in cuts]
    return [items[:low] + items[high:] for low, high in cuts]
