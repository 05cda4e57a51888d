"""Weights from one form to the other."""

from typing import Annotated

import typer

from meshwright.cli.base import app
from meshwright.cli.options import INSTALL, REMOTE, WEIGHTS, Json
from meshwright.errors import MeshwrightError

_EXAMPLES = """Example: meshwright convert run model-folder --verify

Example: meshwright convert model-folder begin-here --verify"""
_VERIFY = "Compare the logits of transformers' model before and after."


@app.command(short_help="Write a checkpoint as a Hugging Face folder, or the other way.", epilog=_EXAMPLES)
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help=WEIGHTS)],
    target: Annotated[str, typer.Argument(metavar="OUT", help="A new folder.")],
    *,
    verify: Annotated[bool, typer.Option("--verify", help=_VERIFY)] = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help=REMOTE)] = False,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder (config.json and safetensors), or such a folder as a checkpoint that
    a run can begin from.
    """
    from meshwright.report.screen import show
    from meshwright.report.weights import converted_blocks, converted_data

    try:
        from meshwright.train.convert import convert
    except ImportError as error:
        raise MeshwrightError(f"this needs torch, which is not here ({error}); {INSTALL}") from None
    found = convert(source, target, verify=verify, trust_remote_code=trust_remote_code)
    show(as_json, lambda: converted_data(found), lambda: converted_blocks(found))
