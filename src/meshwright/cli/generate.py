"""A quick look at what a model has learnt."""

from typing import Annotated

import typer

from meshwright.cli.base import app
from meshwright.cli.options import INSTALL, REMOTE, WEIGHTS, Json, number
from meshwright.errors import MeshwrightError

_TOKENIZER = "bytes, a tokenizer.json or a folder with one; none: the model's own."
_TEMPERATURE = "0 takes the likeliest token each time; 1 draws from what the model says."
_EXAMPLES = """Example: meshwright generate run --prompt "def main("

Example: meshwright generate model-folder --prompt "Why is the sky blue?" --chat --temperature 0.8"""


@app.command(short_help="Let a language model go on from a prompt.", epilog=_EXAMPLES)
def generate(
    what: Annotated[str, typer.Argument(metavar="MODEL|CHECKPOINT", help=WEIGHTS)],
    *,
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="What the text begins with.")] = "",
    tokens: Annotated[int, number("--tokens", "Put out so many tokens at most.")] = 100,
    temperature: Annotated[float, typer.Option("--temperature", metavar="T", help=_TEMPERATURE)] = 0.0,
    top_k: Annotated[int | None, number("--top-k", "Draw from so many of the likeliest tokens.")] = None,
    seed: Annotated[int, number("--seed", "Of what is drawn.")] = 0,
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", metavar="PATH|bytes", help=_TOKENIZER)] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Make the prompt a user's turn, by the chat template.")] = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help=REMOTE)] = False,
    as_json: Json = False,
) -> None:
    """Let a language model go on from a prompt, on this one process: a quick look at what it has learnt."""
    from meshwright.report.screen import show
    from meshwright.report.weights import generated_blocks

    for name, value, least in (("--tokens", tokens, 1), ("--temperature", temperature, 0), ("--top-k", top_k or 1, 1)):
        if value < least:
            raise MeshwrightError(f"{name}: must be at least {least} (got {value:g})")
    try:
        from meshwright.train.generate import Choice, generate
    except ImportError as error:
        raise MeshwrightError(f"this needs torch, which is not here ({error}); {INSTALL}") from None
    choice = Choice(tokens, temperature, top_k, seed)
    found = generate(what, prompt, choice, tokenizer=tokenizer, chat=chat, trust_remote_code=trust_remote_code)
    show(as_json, found._asdict, lambda: generated_blocks(found))
