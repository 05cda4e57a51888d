"""What layers take at least but for their routed experts: by the degrees that cut a sample and a matrix alone.

However experts are spread, the rest of a layer computes and exchanges the same. Of shapes with the same such degrees it
is costed once, on a model without experts, which adds what these take at least for all of the shapes together.
"""

from typing import NamedTuple, TypeVar

from meshwright.cost.calibration import Calibration
from meshwright.document import Record
from meshwright.model.operators import Experts
from meshwright.model.spec import Layer, LayerStack, ModelSpec, Part
from meshwright.search.benches import Benches
from meshwright.search.bounds import Times, alone, least_of
from meshwright.search.problem import Problem
from meshwright.search.space import Shape

_Record = TypeVar("_Record", bound=Record)


class Cuts(NamedTuple):
    """Degrees that what is no expert depends on, and the samples of a micro-batch."""

    tp: int
    ulysses: int
    cp: int
    samples: int


def cuts_of(shape: Shape) -> Cuts:
    """Of a shape."""
    return Cuts(shape.tp, shape.ulysses, shape.cp, shape.samples)


class Dense:
    """A layer of a problem without its experts."""

    def __init__(self, problem: Problem, calibration: Calibration, layer: Layer) -> None:
        place = problem.model.layers.index(layer)
        self._problem = problem._replace(model=without_experts(problem.model))
        self._layer = self._problem.model.layers[place]
        self._benches = Benches(self._problem, calibration)
        self.whole = least_of(alone(self._problem, calibration), self._layer)
        """For the whole batch, on one device without losses."""

    def times(self, shape: Shape) -> Times:
        """For a micro-batch, on the ranks of a shape."""
        batch, cuts = shape.samples * shape.micro_batches * shape.dp, cuts_of(shape)
        one = Shape(cuts.tp, cuts.ulysses, cuts.cp, 1, 1, 1, cuts.tp, cuts.samples, batch // cuts.samples)
        return least_of(self._benches.replica(one), self._layer)


def without_experts(model: ModelSpec) -> ModelSpec:
    """The same model whose layers have all but their routed experts.

    >>> import meshwright as mw
    >>> mixtral = mw.model("mixtral-8x7b")
    >>> [each.parameters // 10**6 for each in (mixtral, without_experts(mixtral))]
    [46702, 1605]
    """
    return _anew(model, stacks=tuple(map(_thin, model.stacks)))


def _thin(stack: LayerStack) -> LayerStack:
    return _anew(stack, parts=tuple(map(_without, stack.parts)))


def _without(part: Part) -> Part:
    return _anew(part, operators=tuple(each for each in part.operators if not isinstance(each, Experts)))


def _anew(record: _Record, **changes: object) -> _Record:
    """The same but for these fields, checked; what the record has worked out of them is left behind."""
    fields = {name: getattr(record, name) for name in type(record).model_fields}
    return type(record)(**(fields | changes))
