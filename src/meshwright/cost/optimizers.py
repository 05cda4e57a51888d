"""What the step of an optimizer keeps, reads, writes and moves between ranks.

Elementwise ones (AdamW, SGD, Lion) work on whatever slice of a parameter a rank has. Adafactor (Shazeer and Stern 2018,
algorithms 4 and 5) keeps means of the squared gradient over rows and over columns, and divides the update of each
tensor by its root mean square where that is large: ranks that share a tensor add these few numbers up. Muon needs whole
matrices (`newton_schulz`); AdamW steps what is no hidden matrix.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from meshwright.cost.flows import Flow
from meshwright.cost.slices import Slice, Stepped
from meshwright.model.tensors import Kind, Tensor
from meshwright.recipe.spec import BYTES, Kept, Recipe

ORTHOGONAL: Literal["bf16"] = "bf16"
"""The dtype that Muon makes matrices orthogonal in, and moves them in (Jordan 2024; Liu 2025, section 2.3)."""


class Passes(NamedTuple):
    """How often a step goes over what belongs to a parameter, with kernels that each do as much as they can at once."""

    gradient: int = 1
    """Beside once more where the global norm is clipped."""
    state: int = 2
    """Read and written."""
    parameter: int = 0
    """Beside reading and writing it at the end."""
    orthogonal: int = 0
    """Over the matrix that is made orthogonal, beside its products."""


_FACTORED = Passes(gradient=3, parameter=1)
"""Over the gradient for its means, for the update's root mean square, and for the update; over the parameter for the
root mean square that scales the step (Shazeer and Stern 2018, sections 6 and 8)."""

PASSES: dict[tuple[str, Kind], Passes] = {
    ("adafactor", "matrix"): _FACTORED,
    ("adafactor", "table"): _FACTORED,
    # The second moment is read once more for the update, when its root mean square is known.
    ("adafactor", "vector"): Passes(gradient=2, state=3, parameter=1),
    # Written, read for its norm, read and written to divide by that, read for the update.
    ("muon", "matrix"): Passes(orthogonal=5),
}
"""Of an optimizer over a kind of tensor, where they are not the usual ones."""


def passes_of(recipe: Recipe, tensor: Tensor) -> Passes:
    """How the recipe's optimizer goes over a tensor."""
    return PASSES.get((recipe.optimizer.name, tensor.kind), Passes())


def makes_orthogonal(recipe: Recipe) -> bool:
    """Whether the recipe's optimizer works on whole matrices."""
    return any(name == recipe.optimizer.name and passes.orthogonal for (name, _), passes in PASSES.items())


def master_bytes(recipe: Recipe) -> float:
    """Bytes of the optimizer's own copy of a parameter; none where it has the dtype that is computed with anyhow."""
    precision = recipe.precision
    return BYTES[precision.master] if precision.master and precision.master != precision.compute else 0.0


def state_numbers(kept: Kept, tensor: Tensor, ways: int) -> float:
    """Numbers of state that a rank keeps of a tensor that is sharded so many ways: between the matrices of a batch, and
    then between rows, as FSDP2 does. Of the means over a matrix's columns a rank keeps all if it has any of its rows.

    >>> state_numbers(Kept(2), Tensor("matrix", 6, 4), 2), state_numbers(Kept(means=True), Tensor("matrix", 6, 4), 2)
    (24.0, 7.0)
    >>> state_numbers(Kept(means=True), Tensor("matrix", 6, 4, batch=8), 2)
    40.0
    """
    found = kept.whole * tensor.numbers / ways
    return found + _row_means(tensor, ways) + _column_means(tensor, ways) if kept.means else found


def _row_means(tensor: Tensor, ways: int) -> float:
    return tensor.batch * tensor.rows / ways


def _column_means(tensor: Tensor, ways: int) -> float:
    return max(1.0, tensor.batch / ways) * tensor.columns


def state_bytes(recipe: Recipe, tensors: Iterable[Tensor], ways: int) -> float:
    """What a rank keeps for the optimizer: states and the master copy.

    >>> state_bytes(Recipe(global_batch=1, sequence=1), [Tensor("matrix", 10, 10)], 1)
    1200.0
    """
    optimizer, master = recipe.optimizer, master_bytes(recipe)
    width = BYTES[optimizer.state]
    return sum(
        width * state_numbers(optimizer.kept(tensor.kind), tensor, ways) + master * tensor.numbers / ways
        for tensor in tensors
    )


def optimizer_bytes(recipe: Recipe, tensors: Iterable[Tensor], ways: int) -> float:
    """What a rank's step reads and writes: the gradient, once more where it is clipped; every state, and the master
    copy where there is one, twice; the parameter, which is only written where there is a master copy; and what `PASSES`
    adds.

    >>> optimizer_bytes(Recipe(global_batch=1, sequence=1), [Tensor("vector", 1)], 1)
    34.0
    """
    return sum(_step_bytes(recipe, tensor, ways) for tensor in tensors)


def _step_bytes(recipe: Recipe, tensor: Tensor, ways: int) -> float:
    precision, optimizer, passes = recipe.precision, recipe.optimizer, passes_of(recipe, tensor)
    compute, master = BYTES[precision.compute], master_bytes(recipe)
    each = BYTES[precision.reduce] * (passes.gradient + (recipe.clip_norm is not None))
    each += 2 * master + compute * (1 if master else 2) + (master or compute) * passes.parameter
    each += BYTES[ORTHOGONAL] * passes.orthogonal
    states = passes.state * BYTES[optimizer.state] * state_numbers(optimizer.kept(tensor.kind), tensor, ways)
    return states + each * tensor.numbers / ways


def optimizer_flows(recipe: Recipe, stepped: Stepped) -> list[Flow]:
    """The collectives of the step of one layer's parameters, those of the same ranks together. Elementwise optimizers
    have none.
    """
    needs = _NEEDS.get(recipe.optimizer.name)
    return list(needs(recipe, stepped)) if needs else []


def _orthogonal_flows(recipe: Recipe, stepped: Stepped) -> Iterator[Flow]:
    """Each matrix to its owner and back, once the gradients are clipped: what a rank has of the momenta, in bf16."""
    sizes: dict[tuple[str, ...], float] = {}
    for each in stepped.slices:
        axes = stepped.sharing(each)
        if axes and passes_of(recipe, each.own).orthogonal:
            sizes[axes] = sizes.get(axes, 0.0) + BYTES[ORTHOGONAL] * each.own.numbers / stepped.ways
    for axes, size in sizes.items():
        yield Flow("shard", "all_to_all", axes, size, "update", 2)


def _factored_flows(recipe: Recipe, stepped: Stepped) -> Iterator[Flow]:
    """The sums that make means, with those of the parameter's and then of the update's squares, which need these."""
    first: dict[tuple[str, ...], float] = {}
    second: dict[tuple[str, ...], float] = {}
    for each in stepped.slices:
        for axes, numbers in _sums(stepped, each):
            first[axes] = first.get(axes, 0.0) + numbers
        axes = _sharing(stepped, each)
        first[axes], second[axes] = first.get(axes, 0.0) + 1, second.get(axes, 0.0) + 1
    for sums in (first, second):
        for axes, numbers in sums.items():
            if axes and numbers:
                yield Flow("shard", "all_reduce", axes, BYTES[recipe.optimizer.state] * numbers, "update")


def _sharing(stepped: Stepped, each: Slice) -> tuple[str, ...]:
    """The axes whose ranks have parts of one tensor, be it of other matrices of a batch."""
    return stepped.shard + stepped.tensor * each.is_cut


def _sums(stepped: Stepped, each: Slice) -> Iterator[tuple[tuple[str, ...], float]]:
    """Numbers of means that ranks have parts of: over columns where a state or tensor parallelism cuts rows, over rows
    where tensor parallelism cuts columns; and the mean of these.
    """
    own, whole = each
    if own.kind == "vector":
        return
    rows = stepped.shard * (stepped.ways > own.batch) + stepped.tensor * (own.rows < whole.rows)
    yield rows, _column_means(own, stepped.ways)
    yield stepped.tensor * (own.columns < whole.columns), _row_means(own, stepped.ways)
    yield stepped.sharing(each), 1.0


_NEEDS: dict[str, Callable[[Recipe, Stepped], Iterator[Flow]]] = {
    "adafactor": _factored_flows,
    "muon": _orthogonal_flows,
}
