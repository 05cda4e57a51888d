"""The command line itself; its verbs are in the other files of this folder."""

from typing import Annotated

import typer

from meshwright.version import __version__

app = typer.Typer(
    name="meshwright",
    help="Finds the fastest way to spread a training over devices, and says what it will cost and why.",
    epilog="Every verb takes --json, and says more with --help. Exit code 2: something you asked for is wrong.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"meshwright {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
