"""Changes between unlike neighbours against plans that have them."""

import pytest

import meshwright as mw
from meshwright.cost.estimate import estimate_placement
from meshwright.cost.placement import Placement
from meshwright.search.bench import Bench
from meshwright.search.changes import Changes
from meshwright.search.choice import Option, inputs_of, make_plan
from meshwright.search.mixed import divisions
from meshwright.search.problem import Problem
from meshwright.search.space import Shape, realise
from tests.cost.build import llama

MODEL = llama(num_hidden_layers=3, hidden_size=1024, intermediate_size=2816, vocab_size=8192)


def test_a_change_takes_what_an_estimate_says_of_it() -> None:
    problem = Problem(MODEL, mw.cluster("4xh100"), mw.recipe(global_batch=16, sequence=1024))
    choice = realise(problem, Shape(2, 1, 1, 2, 1, 1, 2, 2, 4))
    assert choice is not None
    bench = Bench(problem, choice)
    changes, whole, turned = Changes(bench), (), ("tp",)
    assert divisions(problem, choice) == [whole, turned]
    for pattern in ("wtttt", "wwtww", "tttww", "wtwtw"):
        axes = [turned if letter == "t" else whole for letter in pattern]
        plan = make_plan(problem, choice, (0, 5), [Option(None, "none", each) for each in axes])
        spent = estimate_placement(Placement(inputs_of(problem, plan), bench.calibration)).parts["transition"]
        own = [
            sum(changes.into(layer.name, before, after))
            for layer, before, after in zip(MODEL.layers[1:], axes, axes[1:], strict=False)
        ]
        assert spent == pytest.approx(sum(own) * choice.micro_batches, rel=1e-9)
        assert spent > 0
