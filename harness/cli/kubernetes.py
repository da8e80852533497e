"""Commands about clusters on Kubernetes."""

from typing import Annotated

import typer

from aftershock.errors import AftershockError

kubernetes = typer.Typer(help="Prepare a Kubernetes cluster for runs.", no_args_is_help=True)


@kubernetes.command()
def rbac(
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Namespace of the runs (default: runs make namespaces of their own)."),
    ] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="The role to attach to brokers in pods of the namespace.")
    ] = False,
    agent: Annotated[bool, typer.Option("--agent", help="With --attach: for plans with `agent: true`, too.")] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="For plans with `nodes: true` (drain), too.")] = False,
    user: Annotated[str, typer.Option(metavar="NAME", help="User to whom the role is bound.")] = "USER",
) -> int:
    """Print the least role that a run needs, and its binding, for `kubectl apply -f -`."""
    from aftershock.faults.sections.document import dump_yaml
    from aftershock.harness.attach.broker_pods import AGENT_NEEDS, NEEDS
    from aftershock.harness.cluster.kubernetes import cordons
    from aftershock.harness.lifecycle.launch_kubernetes import role

    if (attach and namespace is None) or (agent and not attach):
        raise AftershockError("--attach needs --namespace, that of the brokers' pods, and --agent needs --attach")
    documents = role(namespace, (*NEEDS, *(AGENT_NEEDS if agent else ())) if attach else None)
    documents += role(None, cordons.NEEDS, "aftershock-nodes") if nodes else []
    for binding in documents[1::2]:
        binding["subjects"][0]["name"] = user
    print("---\n".join(dump_yaml(document) for document in documents), end="")
    return 0
