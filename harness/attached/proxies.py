"""The proxies of a user's Toxiproxy that a plan names: the only ones of it that exist for us.

They are called here as the links of a launched cluster are (``client_a-k1``), so that journal, undo and report read
alike; only what is sent to Toxiproxy has the user's names.
"""

from collections.abc import Mapping

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.attach import Attach
from aftershock.faults.values import Toxic
from aftershock.harness.toxiproxy import Toxiproxy


class NamedProxies:
    """See `Toxiproxy`, whose words these are, for the named proxies. FaultError for any other."""

    def __init__(self, server: Toxiproxy, theirs: Mapping[str, str]) -> None:
        self.server = server
        self._theirs = dict(theirs)
        self._ours = {name: link for link, name in theirs.items()}

    @classmethod
    def of(cls, attach: Attach) -> "NamedProxies | None":
        """None where the plan names none."""
        if attach.toxiproxy is None:
            return None
        host, _, port = attach.toxiproxy.removeprefix("http://").rstrip("/").rpartition(":")
        theirs = {link_name(attach, broker): name for name, broker in attach.proxies.items()}
        return cls(Toxiproxy(host, int(port)), theirs)

    def check(self) -> None:
        """ClusterError if one isn't there, or lets nothing through."""
        try:
            there, disabled = self.server.upstreams(), self.server.disabled()
        except FaultError as error:
            raise ClusterError(f"your Toxiproxy can't be asked: {error}") from error
        for name in self._ours:
            if name not in there:
                known = ", ".join(sorted(there)) or "none"
                raise ClusterError(f"your Toxiproxy at {self.server.url} has no proxy {name}; it has: {known}")
            if name in disabled:
                raise ClusterError(f"your proxy {name} is disabled: enable it, or take it out of `proxies`")

    @property
    def url(self) -> str:
        """Where the server's API is."""
        return self.server.url

    @property
    def theirs(self) -> Mapping[str, str]:
        """The user's names by ours."""
        return self._theirs

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:  # noqa: D102
        self.server.add_toxic(self._name(proxy), toxic)

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:  # noqa: D102
        self.server.update_toxic(self._name(proxy), toxic)

    def remove_toxic(self, proxy: str, name: str) -> None:  # noqa: D102
        self.server.remove_toxic(self._name(proxy), name)

    def enable(self, proxy: str, *, enabled: bool) -> None:  # noqa: D102
        self.server.enable(self._name(proxy), enabled=enabled)

    def redirect(self, proxy: str, upstream: str) -> None:  # noqa: D102
        self.server.redirect(self._name(proxy), upstream)

    def toxics(self) -> dict[str, tuple[Toxic, ...]]:  # noqa: D102
        return {self._ours[name]: toxics for name, toxics in self.server.toxics().items() if name in self._ours}

    def disabled(self) -> frozenset[str]:  # noqa: D102
        return frozenset(self._ours[name] for name in self.server.disabled() if name in self._ours)

    def upstreams(self) -> dict[str, str]:  # noqa: D102
        return {self._ours[name]: upstream for name, upstream in self.server.upstreams().items() if name in self._ours}

    def _name(self, proxy: str) -> str:
        if proxy not in self._theirs:
            raise FaultError(f"{proxy} is none of the proxies that the plan names under `attach`: it is left alone")
        return self._theirs[proxy]


def link_name(attach: Attach, broker: int) -> str:
    """What we call the link from the clients to a broker, as `racks` calls those of a launched cluster."""
    return f"client_{attach.rack}-k{broker}"
