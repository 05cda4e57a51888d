"""A stage keeps its own layers alone, and runs the module's own forward."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from meshwright.runtime.stage import Gate, StageModule, StandIn, keep_layers, view_of_layers
from meshwright.trace.target import find_model
from tests.parity.harness import Case, build

CASES = [Case({}, {}), Case({}, {}, family="gpt2", tied=True)]
FIRST, LAST = {"embed", "decoder.0", "decoder.1"}, {"decoder.2", "decoder.3", "head"}
Cut = Callable[..., nn.Module]


def _halves(module: nn.Module, cut: Cut) -> tuple[StageModule, StageModule]:
    spec = find_model(module.config)
    before, after = (cut(module, spec, kept) for kept in (FIRST, LAST))
    path = spec.by_name["decoder.2"].modules[0]
    return (
        StageModule(before, [], None, Gate(before.get_submodule(path))),
        StageModule(after, [], Gate(after.get_submodule(path)), None),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_stages_one_after_the_other_are_the_module(case: Case) -> None:
    """Under a mask, which every stage makes for itself."""
    module = build(case).eval()
    ids = torch.arange(24).reshape(2, 12)
    inputs = {"input_ids": ids, "attention_mask": (torch.arange(12) < torch.tensor([[12], [7]])).long()}
    wanted = module(**inputs, use_cache=False).logits
    first, last = _halves(module, view_of_layers)
    assert torch.equal(last.forward(inputs, first.forward(inputs, None)), wanted)


def test_parameters_of_other_stages_are_let_go() -> None:
    module = build(CASES[0])
    spec = find_model(module.config)
    every = {name: parameter.numel() for name, parameter in module.named_parameters()}
    keep_layers(module, spec, LAST)
    kept = {name for name, _ in module.named_parameters()}
    assert kept == {name for name in every if spec.layer_of(name) in LAST}
    assert isinstance(module.get_submodule("model.layers.1"), StandIn)
    assert len(list(module.get_submodule("model.layers.1").modules())) == 1


def test_a_stand_in_for_a_table_of_positions_goes_with_any_part_of_them() -> None:
    module = build(CASES[1])
    keep_layers(module, find_model(module.config), LAST)
    tokens, positions = (module.get_submodule(f"transformer.{name}") for name in ("wte", "wpe"))
    some, every = torch.zeros(2, 6, dtype=torch.int64), torch.arange(12)[None]
    assert (tokens(some) + positions(every)).shape == (2, 6, 32)


def test_a_stand_in_for_an_embedding_gives_zeros_that_take_no_memory() -> None:
    given: Tensor = StandIn(nn.Embedding(8, 16))(torch.zeros(2, 3, dtype=torch.int64))
    assert given.shape == (2, 3, 16)
    assert given.untyped_storage().nbytes() == 4
    assert not given.any()


def test_a_stand_in_for_embeddings_of_any_kind_has_their_shape_and_no_values() -> None:
    module = build(Case({}, {}, "vit"))
    keep_layers(module, find_model(module.config), {"encoder.3", "head"})
    stand_in = module.get_submodule("vit.embeddings")
    given: Tensor = stand_in(torch.zeros(2, 3, 16, 16, dtype=torch.float64))
    assert given.shape == (2, 17, 32)
    assert not given.any()
    assert given.untyped_storage().nbytes() == 8
    assert not list(stand_in.parameters())
    assert stand_in.patch_embeddings.projection.weight.is_meta


def test_a_stand_in_for_a_layer_that_puts_out_more_hands_on_activations_first() -> None:
    module = build(Case({}, {}, "falcon"))
    keep_layers(module, find_model(module.config), {"head"})
    x = torch.ones(2, 3, 32)
    first, *others = module.get_submodule("transformer.h.0")(x, attention_mask=None)
    assert first is x
    assert others == [None]
