"""The surface is frozen: every verb, option and public name stands in surface.txt. A change is a line in a diff."""

import difflib
import inspect
import sys
from pathlib import Path

import typer

import meshwright as mw
from meshwright.cli import command_line

GOLDEN = Path(__file__).with_name("surface.txt")
UPDATE = "if the change is meant: .venv/bin/python tests/test_surface.py"


def surface() -> str:
    """All that a user can type, one thing a line."""
    return "\n".join([*verbs(), "", *names()]) + "\n"


def verbs() -> list[str]:
    """The verbs with their arguments and options; an option that may be left out stands in brackets."""
    lines = []
    command = typer.main.get_command(command_line())
    for name, verb in {"": command, **getattr(command, "commands", {})}.items():
        lines.append(f"meshwright {name}".strip())
        for parameter in verb.params:
            shown = (
                " ".join((*parameter.opts, *parameter.secondary_opts)) if parameter.param_type_name == "option" else "-"
            )
            kind = parameter.display_type(typer.Context(verb))
            needed = "required" if parameter.required else f"default {parameter.default}"
            lines.append(f"    {shown} {parameter.name} {kind} {needed}")
    return lines


def names() -> list[str]:
    """The public names with their signatures."""
    lines = []
    for name in sorted(mw.__all__):
        value = getattr(mw, name)
        signature = str(inspect.signature(value)) if inspect.isfunction(value) else ""
        signature = signature.replace("pathlib._local.", "pathlib.")  # Python 3.13's name for it
        lines.append(f"meshwright.{name}{signature}")
    return lines


def test_the_surface_is_the_one_that_is_written_down() -> None:
    difference = difflib.unified_diff(
        GOLDEN.read_text().splitlines(), surface().splitlines(), "surface.txt", "the code"
    )
    said = "\n".join(difference)
    assert not said, f"\n{said}\n\n{UPDATE}"


def test_every_public_name_is_there_and_documented() -> None:
    for name in mw.__all__:
        value = getattr(mw, name)
        assert isinstance(value, str) or value.__doc__, f"{name} has no docstring"


def test_every_verb_says_what_it_does_with_an_example() -> None:
    for name, verb in getattr(typer.main.get_command(command_line()), "commands", {}).items():
        assert verb.help, f"{name} has no help"
        assert f"meshwright {name} " in f"{verb.epilog} ", f"{name} has no example"
        assert "as_json" in {parameter.name for parameter in verb.params}, f"{name} has no --json"


if __name__ == "__main__":
    GOLDEN.write_text(surface())
    sys.stdout.write(f"wrote {GOLDEN}\n")
