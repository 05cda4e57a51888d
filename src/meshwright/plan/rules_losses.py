"""Rules of our own runtime on losses: which a model has, and where its logits may exist in pieces."""

from collections.abc import Iterator

from meshwright.model.operators import Linear, Loss, Operator
from meshwright.plan.rule import Finding, Inputs, Rule, found


def _loss_of_another(inputs: Inputs) -> Iterator[Finding]:
    """Whether a model puts out a value for each sample, is given what its decoder is to say, or neither."""
    head, kind = inputs.model.stacks[-1], inputs.recipe.loss.kind
    once = inputs.model.streams[head.stream].length == 1 or any(
        isinstance(each, Loss) and each.positions == 1 for each in head.operators
    )
    if once:
        what, fits = "puts out one value for each sample", ["classification"]
    elif inputs.model.sides:
        what, fits = "has a decoder that looks at an encoder", ["seq2seq"]
    else:
        what, fits = "puts out a value for each position", ["causal_lm", "masked_lm"]
    if kind not in fits:
        yield found("recipe.loss.kind", kind=kind, model=inputs.model.name, what=what, fix="' or '".join(fits))


def _logits_in_pieces(inputs: Inputs) -> Iterator[Finding]:
    head = inputs.model.stacks[-1]
    after: list[Operator] = []
    for operator in head.operators:
        after = [] if isinstance(operator, Linear) and operator.outputs == head.output else [*after, operator]
    once = inputs.recipe.loss.kind == "classification"
    if inputs.recipe.loss.chunks > 1 and (once or any(not isinstance(each, Loss) for each in after)):
        yield found("recipe.loss.chunks", chunks=inputs.recipe.loss.chunks, model=inputs.model.name)


def _gradients_of_pieces(inputs: Inputs) -> Iterator[Finding]:
    if inputs.recipe.loss.chunks > 1 and inputs.plan.schedule == "gpipe" and inputs.plan.micro_batches > 1:
        yield found("schedule", count=inputs.plan.micro_batches)


LOSS_RULES: tuple[Rule, ...] = (
    Rule(
        "runtime-loss",
        "runtime",
        _loss_of_another,
        "the loss '{kind}' is not that of '{model}', which {what}",
        "write '{fix}'",
    ),
    Rule(
        "runtime-chunks",
        "runtime",
        _logits_in_pieces,
        "the runtime takes logits in {chunks} pieces of the sequence where they are what a matrix puts out for each "
        "position, and those of '{model}' are not",
        "write 'chunks: 1'",
    ),
    Rule(
        "runtime-chunks-kept",
        "runtime",
        _gradients_of_pieces,
        "logits in pieces have their gradients in forward, and 'gpipe' keeps those of the head's matrix for each of "
        "{count} micro-batches",
        "write 'schedule: 1f1b'",
        "warning",
    ),
)
