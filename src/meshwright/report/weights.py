"""What was converted, and what a model put out."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from meshwright.report.blocks import Block, Facts, Lines

if TYPE_CHECKING:
    from meshwright.train.convert import Converted
    from meshwright.train.generate import Generated

_FORMS = {True: "checkpoint", False: "Hugging Face folder"}


def converted_data(found: "Converted") -> dict[str, Any]:
    """For --json."""
    return {
        "from": {"place": str(found.source.place), "form": _FORMS[found.source.is_checkpoint]},
        "to": {"place": str(found.target.place), "form": _FORMS[found.target.is_checkpoint]},
        "parameters": found.parameters,
        "logits_apart": found.difference,
    }


def converted_blocks(found: "Converted") -> Iterable[Block]:
    """For a person."""
    rows = [
        (f"from the {_FORMS[found.source.is_checkpoint]}", str(found.source.place)),
        (f"to the {_FORMS[found.target.is_checkpoint]}", str(found.target.place)),
        ("parameters", f"{found.parameters:,}"),
    ]
    apart = found.difference
    said = "not compared (--verify)" if apart is None else f"{apart:.1e} apart, of the largest: the same model"
    return [Facts("converted", (*rows, ("logits", said)))]


def generated_blocks(found: "Generated") -> Iterable[Block]:
    """The prompt and what follows, as they stand."""
    return [Lines("", tuple((found.prompt + found.text).split("\n")))]
