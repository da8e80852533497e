"""Commands ``clients list`` and ``clients build``: client libraries whose version can be chosen."""

import json
from typing import Annotated

import typer

from aftershock.harness.cli.options import JsonOption

clients = typer.Typer(help="Clients whose version can be chosen.", no_args_is_help=True)


@clients.command("list")
def list_clients(as_json: JsonOption = False) -> int:
    """List the clients, versions that are known to work, and the versions that are built here."""
    from aftershock.harness.clients.build import find, programs_here, size_bytes
    from aftershock.harness.clients.catalogue import CATALOGUE
    from aftershock.harness.run.runs import size

    here = list(programs_here())
    if as_json:
        rows = {
            name: {
                "registry": library.registry,
                "known": list(library.known),
                "built": [
                    {"version": program.version, "lacks": dict(program.lacks), "command": list(program.command)}
                    for program in here
                    if program.client == name and find(name, program.version) == program
                ],
            }
            for name, library in CATALOGUE.items()
        }
        print(json.dumps(rows, indent=1))
        return 0
    for name, library in CATALOGUE.items():
        print(f"{name}: {library.title}, from {library.registry}\n    known to work: {', '.join(library.known)}")
        for program in here:
            if program.client == name:
                older = "" if find(name, program.version) == program else ", of another release of Aftershock"
                lacks = f", lacks {', '.join(program.lacks)}" if program.lacks else ""
                print(f"    built: {program.version}, {size(size_bytes(program.folder))}{lacks}{older}")
    return 0


@clients.command()
def build(
    client: Annotated[
        list[str], typer.Argument(metavar="CLIENT@VERSION…", help="Versions to build, for example franz-go@1.20.2.")
    ],
) -> int:
    """Build versions of clients before a run needs them."""
    from aftershock.harness.clients.build import built
    from aftershock.harness.clients.catalogue import parse
    from aftershock.harness.run.progress import Progress

    log = Progress().log
    for name, version in [parse(text) for text in client]:
        program = built(name, version, log)
        lacks = "".join(f"; lacks {word}: {reason}" for word, reason in program.lacks.items())
        print(f"{program.name} is built in {program.folder}{lacks}")
    return 0
