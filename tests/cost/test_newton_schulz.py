"""Muon's products against torch's own, and how they are dealt out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.estimate import estimate_plan
from meshwright.cost.newton_schulz import STEPS, newton_schulz, orthogonal_seconds, owned
from meshwright.cost.placement import Placement
from meshwright.cost.slices import Slice, Stepped, stepped_by
from meshwright.model.spec import ModelSpec
from meshwright.model.tensors import Tensor
from meshwright.plan.rules import Inputs
from meshwright.recipe.spec import Recipe
from tests.cost.build import LLAMA, QUICK, inputs, llama

MUON = {"optimizer": {"name": "muon"}}


def muon(model: ModelSpec | str, mesh: dict[str, int], roles: dict[str, str], **asked: Any) -> Inputs:
    return inputs(model, "8xh100", mesh, roles, recipe=MUON, **asked)


def flops(placement: Placement) -> float:
    """Of the busiest rank in a whole step."""
    return sum(
        STEPS * count * len(block.names) * product.flops
        for block in placement.blocks
        for stepped in stepped_by(placement, block)
        for shape, count in owned(placement.recipe, stepped, len(block.names)).items()
        for product in newton_schulz(*shape)
    )


def test_a_step_of_torchs_muon_has_the_same_flops() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    settings = transformers.AutoConfig.for_model(**LLAMA, bos_token_id=0, eos_token_id=0)
    module = transformers.AutoModelForCausalLM.from_config(settings)
    hidden = [matrix for path, matrix in module.model.layers.named_parameters() if matrix.ndim > 1]
    for matrix in hidden:
        matrix.grad = torch.randn_like(matrix)
    optimizer = torch.optim.Muon(hidden)
    with FlopCounterMode(display=False) as counted:
        optimizer.step()
    assert counted.get_total_flops() == flops(Placement(muon(llama(), {"x": 1}, {"x": "dp"})))


@pytest.mark.parametrize(
    ("width", "tokens", "published"),
    [(768, 524_288, 0.007), (16_384, 16_000_000, 0.005)],
    ids=["a NanoGPT", "Llama 405B"],
)
def test_the_flops_beside_those_of_the_model_are_those_that_jordan_gives(
    width: int, tokens: int, published: float
) -> None:
    """Jordan 2024: at most T m / B of forward and backward, which is 6 m n B, for T steps, B tokens, and m = n."""
    products = STEPS * sum(product.flops for product in newton_schulz(width, width))
    assert products / (6 * width * width * tokens) == pytest.approx(STEPS * width / tokens)
    assert products / (6 * width * width * tokens) == pytest.approx(published, rel=0.05)


def test_ranks_that_hold_all_compute_all() -> None:
    alone = flops(Placement(muon(llama(), {"x": 1}, {"x": "dp"})))
    assert flops(Placement(muon(llama(), {"x": 8}, {"x": "dp"}))) == alone


@pytest.mark.parametrize("state", ["zero1", "zero2", "zero3"])
def test_ranks_that_share_matrices_divide_the_work(state: str) -> None:
    """Each shape of four layers has at least four matrices, over two ranks."""
    alone = flops(Placement(muon(llama(), {"x": 1}, {"x": "dp"})))
    assert flops(Placement(muon(llama(), {"x": 2}, {"x": f"dp/{state}"}))) == alone / 2
    assert flops(Placement(muon(llama(), {"x": 2}, {"x": "tp"}))) == alone / 2


def test_a_matrix_is_computed_whole_under_tensor_parallelism() -> None:
    """Keys and values have two heads over four ranks, which each hold a copy of one."""
    [stepped] = stepped_by(placement := Placement(muon(llama(), {"x": 4}, {"x": "tp"})), placement.blocks[1])
    assert [(each.whole.rows, each.whole.columns) for each in stepped.slices if each.own.kind == "matrix"] == [
        *((64, 64), (32, 64), (32, 64), (64, 64)),
        *((160, 64), (160, 64), (64, 160)),
    ]


@QUICK
@given(
    ways=st.integers(1, 64),
    ranks=st.integers(1, 8),
    layers=st.integers(1, 40),
    batches=st.lists(st.integers(1, 16), min_size=1, max_size=4),
)
def test_every_matrix_has_an_owner_and_none_is_cut(ways: int, ranks: int, layers: int, batches: list[int]) -> None:
    slices = tuple(Slice(Tensor("matrix", 8, 32, batch), Tensor("matrix", 8 * ranks, 32, batch)) for batch in batches)
    stepped = Stepped(slices, ("dp",), ways, ("tp",), ranks)
    [busiest] = owned(Recipe.model_validate({"global_batch": 1, "sequence": 1} | MUON), stepped, layers).values()
    every = sum(batches) * layers
    assert round(busiest * layers) == pytest.approx(busiest * layers)
    assert every <= busiest * layers * ways * ranks * (1 + 1e-12)
    assert (busiest * layers - 1) * ways * ranks < every


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "adafactor"])
def test_others_multiply_nothing(name: str) -> None:
    placement = Placement(inputs(llama(), "8xh100", {"x": 8}, {"x": "dp/zero1"}, recipe={"optimizer": {"name": name}}))
    assert [orthogonal_seconds(placement, block) for block in placement.blocks] == [[0.0]] * len(placement.blocks)


def test_the_products_take_no_less_than_at_the_peak_in_bf16() -> None:
    given_inputs = muon("llama-3.1-8b", {"x": 1}, {"x": "dp"}, batch=1)
    placement = Placement(given_inputs)
    peak = given_inputs.cluster.devices["h100"].peak["bf16"]
    time = sum(orthogonal_seconds(placement, block)[0] * len(block.names) for block in placement.blocks)
    assert flops(placement) / peak < time < 2 * flops(placement) / peak


def test_a_sharded_step_of_a_real_model_costs_the_few_percent_that_were_measured() -> None:
    """Liu 2025, section 2.3, puts the time of the optimizer at 1 to 3 percent of forward and backward, as a rule."""
    asked = {"batch": 512, "sequence": 8192, "micro_batches": 8}
    mesh, roles = {"node": 8, "gpu": 8}, {"node": "dp/zero3", "gpu": "dp/zero3"}
    times = {
        name: estimate_plan(
            inputs("llama-3.1-8b", "8x8xh100", mesh, roles, recipe={"optimizer": {"name": name}}, **asked)
        ).step_time_s
        for name in ("adamw", "muon")
    }
    assert 1.003 < times["muon"] / times["adamw"] < 1.03
