"""Layers with windows and layers without; attention and MLP side by side."""

from typing import Any

import pytest

from meshwright.model.hf_config import from_config
from meshwright.model.operators import Attention, Norm
from meshwright.model.resolve import from_catalog
from meshwright.model.spans import span_names
from meshwright.model.spec import ModelSpec


def _windows(model: ModelSpec) -> list[int | None]:
    return [core.window for layer in model.layers for core in model.attentions(layer.name)]


def test_every_other_layer_of_gemma_2_has_a_window() -> None:
    model = from_catalog("gemma-2-2b")
    assert _windows(model) == [4096, None] * 13
    assert [stack.span for stack in model.stacks[:3]] == ["embed", "decoder.0", "decoder.1"]


def test_one_layer_in_six_of_gemma_3_sees_all_positions() -> None:
    model = from_catalog("gemma-3-1b")
    assert _windows(model) == ([512] * 5 + [None]) * 4 + [512] * 2
    spans = [stack.span for stack in model.stacks]
    assert spans[:4] == ["embed", "decoder.0-4", "decoder.5", "decoder.6-10"]
    assert [name for span in spans for name in span_names(span)] == [layer.name for layer in model.layers]
    assert model.by_name["decoder.6"].reads == ("decoder.5",)


@pytest.mark.parametrize(
    ("name", "windows"), [("mistral-7b", {4096}), ("mistral-7b-v0.3", {None}), ("phi-3-mini", {2047})]
)
def test_all_layers_of_some_models_are_equal(name: str, windows: set[int | None]) -> None:
    model = from_catalog(name)
    assert {*_windows(model)} == windows
    assert len(model.stacks) == 3


def test_qwens_windows_begin_above_a_layer() -> None:
    config: dict[str, Any] = {"model_type": "qwen2", "num_hidden_layers": 4, "max_window_layers": 3}
    assert _windows(from_config(config)) == [None] * 4
    assert _windows(from_config(config | {"use_sliding_window": True})) == [None, None, None, 4096]


PARALLEL = {
    "gpt-neox-20b": True,
    "gpt-j-6b": True,
    "falcon-7b": True,
    "falcon-40b": True,
    "falcon-11b": True,
    "falcon-rw-1b": False,
    "phi-2": True,
    "phi-4": False,
    "mistral-7b": False,
    "bloom-7b1": False,
}


@pytest.mark.parametrize(("name", "parallel"), PARALLEL.items())
def test_attention_and_mlp_side_by_side_are_told_apart(name: str, parallel: bool) -> None:
    first, second = from_catalog(name).by_name["decoder.0"].stack.parts
    assert (first.parallel, second.parallel) == (False, parallel)
    assert [op.op for op in second.operators].count("add") == 1 + parallel
    assert [op.op for op in first.operators].count("add") == 1 - parallel


NORMS = {
    "falcon-7b": 1,
    "falcon-40b": 2,
    "falcon-11b": 1,
    "falcon-rw-1b": 2,
    "gpt-neox-20b": 2,
    "gpt-j-6b": 1,
    "gemma-2b": 2,
    "gemma-2-9b": 4,
    "gemma-3-1b": 6,
    "qwen3-8b": 4,
    "qwen2.5-7b": 2,
    "olmo-2-7b": 4,
}


@pytest.mark.parametrize(("name", "count"), NORMS.items())
def test_norms_of_a_block_are_counted(name: str, count: int) -> None:
    operators = from_catalog(name).by_name["decoder.0"].stack.operators
    assert sum(isinstance(op, Norm) for op in operators) == count


HEADS = {
    "falcon-7b": (71, 1, 64),
    "falcon-40b": (128, 8, 64),
    "falcon-180b": (232, 8, 64),
    "gemma-2b": (8, 1, 256),
    "qwen3-0.6b": (16, 8, 128),
    "mistral-nemo-12b": (32, 8, 128),
    "phi-4-mini": (24, 8, 128),
    "olmo-2-32b": (40, 8, 128),
    "bloom-176b": (112, 112, 128),
}


@pytest.mark.parametrize(("name", "heads"), HEADS.items())
def test_few_and_many_kv_heads_are_told_apart(name: str, heads: tuple[int, int, int]) -> None:
    (core,) = from_catalog(name).attentions("decoder.0")
    assert (core.heads, core.kv_heads, core.head_dim) == heads


@pytest.mark.parametrize(
    ("name", "alibi", "capped"),
    [("bloom-7b1", True, False), ("mpt-7b", True, False), ("falcon-rw-1b", True, False), ("gemma-2-2b", False, True)],
)
def test_what_happens_to_scores_is_told_apart(name: str, alibi: bool, capped: bool) -> None:
    (core,) = from_catalog(name).attentions("decoder.0")
    assert isinstance(core, Attention)
    assert (core.alibi, core.capped) == (alibi, capped)


def test_opt_350m_has_matrices_around_and_norms_behind() -> None:
    model = from_catalog("opt-350m")
    assert "model.decoder.project_in" in model.by_name["embed"].modules
    assert model.by_name["head"].modules == ("model.decoder.project_out", "lm_head")
    assert [op.op for op in model.by_name["decoder.0"].stack.operators][-1] == "norm"
    assert from_catalog("opt-125m").by_name["embed"].modules == (
        "model.decoder.embed_tokens",
        "model.decoder.embed_positions",
    )


@pytest.mark.parametrize(
    ("name", "limit"), [("opt-1.3b", 2048), ("gpt-j-6b", 2048), ("mpt-30b", 8192), ("bloom-3b", None)]
)
def test_tables_of_positions_limit_a_sequence(name: str, limit: int | None) -> None:
    assert from_catalog(name).streams["tokens"].limit == limit
