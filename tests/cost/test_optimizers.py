"""What optimizers keep, read, write and move, by formulas, and against torch's own."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.layer_states import States, layer_states
from meshwright.cost.optimizers import optimizer_bytes, state_bytes
from meshwright.cost.placement import Placement
from meshwright.cost.volumes import step_collectives
from meshwright.model.spec import ModelSpec
from meshwright.model.tensors import Tensor
from meshwright.recipe.spec import Recipe
from tests.cost.build import GPT2, LLAMA, QUICK, gpt2, inputs, llama
from tests.plan.models import mixture

NAMES = ["adamw", "sgd", "lion", "adafactor", "muon"]
FP32 = {"compute": "fp32", "reduce": "fp32", "master": None}


def recipe(name: str = "adamw", **fields: Any) -> Recipe:
    asked = {"meshwright_recipe": 1, "global_batch": 1, "sequence": 1, "optimizer": {"name": name}}
    return Recipe.from_data(asked | fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 2 * 4 + 4 * 4 + 2 * 4 + 2),
        ({"clip_norm": None}, 4 + 4 * 4 + 2 * 4 + 2),
        ({"precision": {"compute": "fp32", "master": "fp32"}}, 2 * 4 + 4 * 4 + 2 * 4),
        ({"optimizer": {"name": "sgd"}, "precision": {"master": None}}, 2 * 4 + 2 * 2),
        ({"optimizer": {"name": "sgd", "momentum": 0.9}}, 2 * 4 + 2 * 4 + 2 * 4 + 2),
        ({"optimizer": {"name": "lion"}}, 2 * 4 + 2 * 4 + 2 * 4 + 2),
    ],
    ids=["adam", "without clipping", "one dtype", "plain descent", "momentum", "lion"],
)
@pytest.mark.parametrize("kind", ["matrix", "table", "vector"])
def test_elementwise_optimizers_read_and_write_their_states(kind: Any, fields: dict[str, Any], expected: int) -> None:
    assert optimizer_bytes(recipe(**fields), [Tensor(kind, 10)], 1) == 10 * expected


ROWS, COLUMNS = 6, 10
MATRIX, TABLE, VECTOR = (
    Tensor("matrix", ROWS, COLUMNS),
    Tensor("table", ROWS, COLUMNS),
    Tensor("vector", ROWS * COLUMNS),
)


@pytest.mark.parametrize("tensor", [MATRIX, TABLE], ids=["matrix", "table"])
def test_adafactor_goes_over_the_gradient_three_times_and_over_a_row_and_a_column_of_means(tensor: Tensor) -> None:
    """Gradients in fp32, once more for the clipped norm; the master copy read twice and written, the parameter written
    in bf16; 16 means in fp32, read and written.
    """
    expected = 60 * (4 * 4 + 3 * 4 + 2) + 2 * 4 * (ROWS + COLUMNS)
    assert optimizer_bytes(recipe("adafactor"), [tensor], 1) == expected


def test_adafactor_reads_the_second_moment_of_a_vector_again_when_it_knows_the_updates_size() -> None:
    assert optimizer_bytes(recipe("adafactor"), [VECTOR], 1) == 60 * (3 * 4 + 3 * 4 + 2 + 3 * 4)


def test_muon_goes_five_times_over_a_matrix_in_bf16_and_steps_the_rest_as_adam_does() -> None:
    assert optimizer_bytes(recipe("muon"), [MATRIX], 1) == 60 * (2 * 4 + 2 * 4 + 2 * 4 + 2 + 5 * 2)
    rest = [TABLE, VECTOR]
    assert optimizer_bytes(recipe("muon"), rest, 1) == optimizer_bytes(recipe(), rest, 1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("adamw", 2 * 60), ("sgd", 0), ("lion", 60), ("adafactor", ROWS + COLUMNS), ("muon", 60)],
)
def test_the_state_of_a_matrix_takes_so_many_numbers(name: str, expected: int) -> None:
    assert state_bytes(recipe(name, precision=FP32), [MATRIX], 1) == 4 * expected


@pytest.mark.parametrize(
    ("batch", "ways", "expected"),
    [
        (1, 2, ROWS / 2 + COLUMNS),
        (1, 60, ROWS / 60 + COLUMNS),
        (8, 2, 4 * (ROWS + COLUMNS)),
        (8, 8, ROWS + COLUMNS),
        (8, 16, ROWS / 2 + COLUMNS),
    ],
)
def test_a_rank_keeps_all_column_means_of_each_matrix_that_it_has_rows_of(
    batch: int, ways: int, expected: float
) -> None:
    tensors = [Tensor("matrix", ROWS, COLUMNS, batch)]
    assert state_bytes(recipe("adafactor", precision=FP32), tensors, ways) == 4 * expected


sizes = st.integers(1, 50)
tensors = st.builds(Tensor, st.sampled_from(["matrix", "table"]), sizes, sizes, st.integers(1, 9)) | st.builds(
    Tensor, st.just("vector"), sizes, st.just(1), st.just(1)
)


@QUICK
@given(tensor=tensors, name=st.sampled_from(NAMES), ways=st.integers(1, 64), more=st.integers(1, 64))
def test_more_ranks_never_keep_or_move_more_bytes_each(tensor: Tensor, name: str, ways: int, more: int) -> None:
    asked = recipe(name)
    for of in (state_bytes, optimizer_bytes):
        few, many = of(asked, [tensor], ways), of(asked, [tensor], ways + more)
        assert many <= few * (1 + 1e-12)
        assert of(asked, [tensor], 1) <= ways * few * (1 + 1e-12)  # nothing gets lost either


def optimizer_states(model: ModelSpec, mesh: dict[str, int], roles: dict[str, str], name: str) -> float:
    """Bytes of optimizer states of one rank, all in fp32."""
    asked = {"precision": FP32, "optimizer": {"name": name}}
    placement, total = Placement(inputs(model, "8xh100", mesh, roles, recipe=asked)), States()
    for block in placement.blocks:
        total = total.plus(layer_states(placement, block), len(block.names))
    return total.optimizer


@QUICK
@given(
    name=st.sampled_from(NAMES),
    model=st.sampled_from([llama(), gpt2(), mixture(llama())]),
    split=st.sampled_from(["tp", "tp+sp"]),
    state=st.sampled_from(["", "/zero1", "/zero2", "/zero3"]),
    tensor=st.sampled_from([1, 2]),
)
def test_more_sharding_of_a_model_never_keeps_more_states(
    name: str, model: ModelSpec, split: str, state: str, tensor: int
) -> None:
    def kept(dp: int, ways: int, role: str) -> float:
        return optimizer_states(model, {"dp": dp, "tp": ways}, {"dp": role, "tp": split}, name)

    before = kept(2, tensor, f"dp{state}")
    assert kept(2, 2 * tensor, f"dp{state}") <= before  # more tensor ranks
    assert kept(4, tensor, f"dp{state}") <= before  # more ranks under the state
    assert kept(2, tensor, "dp/zero1") <= kept(2, tensor, "dp")


# Collectives

HIDDEN = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 160 * 64
"""Numbers of a layer's matrices in the small Llama: q and o, k and v, gate, up and down."""


def moved(name: str, mesh: dict[str, int], roles: dict[str, str], model: ModelSpec | None = None) -> list[Any]:
    """(kind, axes, bytes, count, span) of what an optimizer moves that adamw does not."""
    asked = model or llama()
    every, usual = (
        {
            (one.kind, one.axes, one.bytes, one.count, one.span)
            for one in step_collectives(inputs(asked, "8xh100", mesh, roles, recipe={"optimizer": {"name": each}}))
        }
        for each in (name, "adamw")
    )
    assert usual <= every
    return sorted(every - usual)


@pytest.mark.parametrize("name", ["sgd", "lion"])
def test_elementwise_optimizers_move_nothing_of_their_own(name: str) -> None:
    assert moved(name, {"dp": 4, "tp": 2}, {"dp": "dp/zero1", "tp": "tp"}) == []


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_ranks_that_hold_all_of_a_tensor_alone_move_nothing(name: str) -> None:
    assert moved(name, {"dp": 4}, {"dp": "dp"}) == []


@pytest.mark.parametrize("state", ["zero1", "zero2", "zero3"])
def test_muon_brings_each_hidden_matrix_to_its_owner_and_back(state: str) -> None:
    assert moved("muon", {"dp": 4}, {"dp": f"dp/{state}"}) == [
        ("all_to_all", ("dp",), 2 * HIDDEN / 4, 4 * 2, "decoder.0-3")
    ]


def test_muon_deals_slices_of_tensor_parallelism_out_together_with_those_of_a_state() -> None:
    assert moved("muon", {"dp": 4, "tp": 2}, {"dp": "dp/zero1", "tp": "tp+sp"}) == [
        ("all_to_all", ("dp", "tp"), 2 * HIDDEN / 8, 4 * 2, "decoder.0-3")
    ]
    assert moved("muon", {"dp": 4, "tp": 2}, {"dp": "dp", "tp": "tp"}) == [
        ("all_to_all", ("tp",), 2 * HIDDEN / 2, 4 * 2, "decoder.0-3")
    ]


def test_experts_that_a_rank_has_whole_stay_with_it() -> None:
    """Of four ranks each has two of eight experts; what else is hidden goes to its owner."""
    operators = mixture(llama()).by_name["decoder.3"].stack.operators
    hidden = sum(each.parameters() for each in operators if each.op in ("linear", "router"))
    assert [each.count for each in operators if each.op == "experts"] == [8]
    sparse = [one for one in moved("muon", {"dp": 4}, {"dp": "dp/zero1"}, mixture(llama())) if one[-1] != "decoder.0"]
    assert sparse == [("all_to_all", ("dp",), 2 * hidden / 4, 3 * 2, "decoder.1-3")]


def test_adafactor_adds_the_column_means_of_sharded_matrices_up() -> None:
    """Of seven matrices: six that read the hidden 64, one that reads 160; each with the mean of its row means and the
    parameter's square; the two norms with that alone. Then the update's square of all nine.
    """
    means = 6 * 64 + 160 + 7 + 9
    layers = [one for one in moved("adafactor", {"dp": 4}, {"dp": "dp/zero1"}) if one[-1] == "decoder.0-3"]
    assert layers == [
        ("all_reduce", ("dp",), 4 * 9, 4, "decoder.0-3"),
        ("all_reduce", ("dp",), 4 * means, 4, "decoder.0-3"),
    ]


def test_adafactor_adds_up_the_means_along_which_tensor_parallelism_cuts() -> None:
    """Five matrices whose rows are cut leave parts of the means over 64 columns; two whose columns are, of those over
    64 rows. All seven have the mean of means and the parameter's square, and then the update's.
    """
    means = 5 * 64 + 2 * 64 + 7 + 7
    layers = [one for one in moved("adafactor", {"tp": 2}, {"tp": "tp"}) if one[-1] == "decoder.0-3"]
    assert layers == [
        ("all_reduce", ("tp",), 4 * 7, 4, "decoder.0-3"),
        ("all_reduce", ("tp",), 4 * means, 4, "decoder.0-3"),
    ]


# Against torch

MODELS = {"llama": llama(), "tied": llama(tie_word_embeddings=True), "gpt2": gpt2()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["adamw", "sgd", "sgd with momentum", "adafactor", "muon"])
def test_states_take_the_bytes_that_torchs_own_optimizers_keep(name: str, model: str) -> None:
    torch = pytest.importorskip("torch")
    module = _module(model)
    hidden = [
        parameter
        for path, parameter in module.named_parameters()
        if parameter.ndim > 1 and not any(end in path for end in ("embed_tokens", "lm_head", "wte", "wpe"))
    ]
    known = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in module.parameters() if id(parameter) not in known]
    everything, adamw = [*hidden, *rest], torch.optim.AdamW
    stepped = {
        "adamw": [adamw(everything)],
        "sgd": [torch.optim.SGD(everything)],
        "sgd with momentum": [torch.optim.SGD(everything, momentum=0.9)],
        "adafactor": [torch.optim.Adafactor(everything)],
        "muon": [torch.optim.Muon(hidden), adamw(rest)],
    }[name]
    for parameter in everything:
        parameter.grad = torch.ones_like(parameter)
    for optimizer in stepped:
        optimizer.step()
    plain, _, momentum = name.partition(" with ")
    asked = {"precision": FP32, "optimizer": {"name": plain, "momentum": 0.9 if momentum else 0}}
    placement, total = Placement(inputs(MODELS[model], "1xh100", {"x": 1}, {"x": "dp"}, recipe=asked)), States()
    for block in placement.blocks:
        total = total.plus(layer_states(placement, block), len(block.names))
    assert total.optimizer == sum(map(_kept, stepped))


def _module(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    config = {"llama": LLAMA, "tied": LLAMA | {"tie_word_embeddings": True}, "gpt2": GPT2}[name]
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config, **ids))


def _kept(optimizer: Any) -> int:
    """Bytes of an optimizer's states, without the scalars that count its steps."""
    states: Iterable[dict[str, Any]] = optimizer.state_dict()["state"].values()
    every = [tensor for state in states for tensor in state.values() if tensor is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in every if tensor.ndim)
