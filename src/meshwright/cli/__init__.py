"""The command line: verbs that read their arguments, ask the library, and show the answer.

A command imports the file of its verb alone, and each verb what it needs, so that every one starts quickly.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

import typer

from meshwright.cli.base import app
from meshwright.errors import MeshwrightError

_VERBS = {
    "model": "describe",
    "models": "describe",
    "cluster": "describe",
    "clusters": "describe",
    "estimate": "estimate",
    "plan": "plan",
    "check": "estimate",
    "diff": "describe",
    "export": "export",
    "import": "export",
    "validate": "accuracy",
    "calibrate": "accuracy",
    "train": "train",
    "generate": "generate",
    "convert": "convert",
    "doctor": "describe",
    "schema": "describe",
}
"""The file of each verb, in the order of help."""


def command_line(verb: str | None = None) -> typer.Typer:
    """The command line with all verbs, or for a known verb with those of its file alone."""
    wanted = [_VERBS[verb]] if verb in _VERBS else list(dict.fromkeys(_VERBS.values()))
    for name in wanted:
        import_module(f"meshwright.cli.{name}")
    order = list(_VERBS)
    app.registered_commands.sort(key=lambda each: order.index(str(each.name or getattr(each.callback, "__name__", ""))))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, and exit. One message and exit code 2 for what a user can fix; 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        command_line(typed[0] if typed else None)(arguments, prog_name="meshwright")
    except MeshwrightError as error:
        typer.echo(error, err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
