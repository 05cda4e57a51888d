"""A language model within another one, at another module path."""

from typing import Any

from meshwright.model.families.encoders import single
from meshwright.model.operators import Activation, Operator
from meshwright.model.spec import LayerStack, ModelSpec, Tie


def nested(text: ModelSpec, at: str, side: str) -> tuple[tuple[LayerStack, ...], tuple[str, ...], tuple[Tie, ...]]:
    """The stacks, shared modules and ties of a decoder whose `model.…` stands at `at`, with the output of the layer
    `side` put in the place of some of its embedded tokens.
    """

    def moved(path: str) -> str:
        return f"{at}.{path.removeprefix('model.')}" if path.startswith("model.") else path

    def operator(op: Operator) -> Operator:
        return op.model_copy(update={"path": moved(op.path)})

    def stack(old: LayerStack) -> LayerStack:
        parts = tuple(
            part.model_copy(update={"operators": tuple(operator(op) for op in part.operators)}) for part in old.parts
        )
        changes: dict[str, Any] = {"modules": tuple(moved(path) for path in old.modules), "parts": parts}
        return old.model_copy(update=changes)

    embed, *others = (stack(old) for old in text.stacks)
    put = Activation(function="masked_scatter", width=embed.output)
    first = single(
        embed.span,
        embed.parts[0].name,
        [*embed.operators, put],
        modules=embed.modules,
        output=embed.output,
        side=(side,),
    )
    ties = (
        Tie(name=tie.name, owner=moved(tie.owner), copies=tuple(moved(copy) for copy in tie.copies))
        for tie in text.ties
    )
    return (first, *others), tuple(moved(path) for path in text.shared), tuple(ties)
