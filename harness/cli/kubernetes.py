"""Commands about clusters on Kubernetes."""

from typing import Annotated

import typer

kubernetes = typer.Typer(help="Prepare a Kubernetes cluster for runs.", no_args_is_help=True)


@kubernetes.command()
def rbac(
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Namespace of the runs (default: runs make namespaces of their own)."),
    ] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="User to whom the role is bound.")] = "USER",
) -> int:
    """Print the least role that a run needs, and its binding, for `kubectl apply -f -`."""
    from aftershock.faults.sections.document import dump_yaml
    from aftershock.harness.lifecycle.launch_kubernetes import role

    documents = role(namespace)
    documents[-1]["subjects"][0]["name"] = user
    print("---\n".join(dump_yaml(document) for document in documents), end="")
    return 0
