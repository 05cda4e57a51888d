"""Cutting a model's layers into stages evenly, the first layers with the first stage and the last with the last."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from meshwright.errors import PlanError
from meshwright.model.spec import Layer, ModelSpec


def cut_layers(model: ModelSpec, stages: int, counts: Sequence[int] | None = None) -> list[tuple[Layer, ...]]:
    """The layers of each stage. `counts` says how many of the numbered layers each takes; even where it is not given.

    Raises PlanError where the model is no chain of numbered layers, or the counts do not fit.
    """
    if stages == 1 and counts is None:
        return [model.layers]
    body = numbered_layers(model)
    if stages > len(body) and counts is None:
        raise PlanError(f"{len(body)} layers do not fill {stages} stages; take at most {len(body)} (pp x virtual)")
    counts = even_counts(len(body), stages) if counts is None else list(counts)
    if len(counts) != stages or sum(counts) != len(body) or min(counts) < 0:
        even = even_counts(len(body), stages)
        raise PlanError(
            f"layers_per_stage has {len(counts)} numbers with the sum {sum(counts)}, for {stages} stages of "
            f"{len(body)} layers; take for example {even}"
        )
    starts = [*body, body[-1] + 1]
    cuts = [0, *(starts[taken] for taken in accumulate(counts[:-1])), len(model.layers)]
    return [model.layers[first:last] for first, last in pairwise(cuts)]


def even_counts(layers: int, stages: int) -> list[int]:
    """How many layers each stage takes. A remainder goes to the stages in the middle, one each: the last stage, which
    has the head, and the first, which has the embedding and the most micro-batches in flight, are the last to get more.

    >>> even_counts(61, 16)
    [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3]
    """
    least, rest = divmod(layers, stages)
    larger = sorted(range(stages), key=lambda stage: (abs(2 * stage - stages + 1), stage))[:rest]
    return [least + (stage in larger) for stage in range(stages)]


def numbered_layers(model: ModelSpec) -> list[int]:
    """Where the numbered layers stand. Raises PlanError where they are no chain of one kind."""
    streams = {layer.stack.stream for layer in model.layers}
    body = [place for place, layer in enumerate(model.layers) if layer.index is not None]
    bases = dict.fromkeys(model.layers[place].name.partition(".")[0] for place in body)
    if len(streams) == 1 and len(bases) == 1:
        return body
    spans = ", ".join(stack.span for stack in model.stacks)
    raise PlanError(
        f"a uniform cut into stages makes no sense for '{model.name}', whose layers are of several kinds ({spans}); "
        "write its stages in a plan of your own, or take pp 1"
    )
