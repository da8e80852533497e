"""The whole search, in the order of what is likely to gain most: rounds, faults, where and how long, load, cluster."""

from aftershock.faults.minimise.candidate import Document
from aftershock.faults.minimise.focus import named
from aftershock.faults.minimise.load import load
from aftershock.faults.minimise.placing import closer, merged, settled
from aftershock.faults.minimise.rounds import rounds
from aftershock.faults.minimise.shorter import shorter
from aftershock.faults.minimise.smaller import smaller
from aftershock.faults.minimise.steps import fewest
from aftershock.faults.minimise.trying import Search, reduced
from aftershock.faults.minimise.weaker import weaker

_AFTER_STEPS = (settled, merged, closer, shorter, load, weaker, smaller)


def minimised(document: Document, seed: int) -> Search[Document]:
    """A smaller plan that fails the same way, as the document does; no single fault could be left out of it."""
    document = yield from named(document, seed)
    document = yield from reduced(document, rounds, seed)
    document = yield from fewest(document, seed)
    for reduction in _AFTER_STEPS:
        document = yield from reduced(document, reduction, seed)
    return document
