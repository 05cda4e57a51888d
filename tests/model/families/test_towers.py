"""The graphs of encoder-decoders, of windows and of several towers, and what their configurations may not say."""

from typing import Any

import pytest

from meshwright.errors import DocumentError
from meshwright.model.hf_config import from_config
from meshwright.model.operators import Attention, Contrast, Convolution, Dropout, Embedding, Linear, Operator, work_of
from meshwright.model.resolve import from_catalog
from meshwright.model.spec import ModelSpec


def _forward(model: ModelSpec, lengths: dict[str, int]) -> float:
    """Multiply-adds of one sample."""
    lengths = lengths | {name: stream.length for name, stream in model.streams.items() if stream.length}
    operators = ((op, stack.stream) for layer in model.layers for stack in (layer.stack,) for op in stack.operators)
    return sum(op.flops(work_of(op, 1, lengths, stream)).forward / 2 for op, stream in operators)


def _operators(model: ModelSpec, layer: str, kind: type[Operator]) -> list[Any]:
    return [op for op in model.by_name[layer].stack.operators if isinstance(op, kind)]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("swin-tiny", 4.5e9),  # Liu et al. 2021 (arXiv 2103.14030), table 1
        ("swin-small", 8.7e9),
        ("swin-base", 15.4e9),
        ("vit-base", 17.56e9),  # torchvision's ViT_B_16_Weights and ViT_L_16_Weights
        ("vit-large", 61.55e9),
    ],
)
def test_an_image_needs_the_published_operations(name: str, published: float) -> None:
    assert _forward(from_catalog(name), {}) == pytest.approx(published, rel=0.02)


def test_the_decoder_of_t5_looks_at_its_encoder() -> None:
    model = from_catalog("t5-11b")
    assert list(model.streams) == ["source", "target"]
    assert model.by_name["decoder.7"].reads == ("decoder.6", "encoder_norm")
    own, across = _operators(model, "decoder.7", Attention)
    assert (own.causal, own.cross, across.causal, across.cross) == (True, None, False, "source")
    streams = [op.stream for op in _operators(model, "decoder.7", Linear)]
    assert streams == [None, None, None, None, None, "source", "source", None, None, None]
    assert {op.cross for op in _operators(model, "decoder.7", Dropout) if op.of == "attention"} == {None, "source"}


def test_the_first_block_of_each_side_of_t5_has_the_table_of_positions() -> None:
    model = from_catalog("flan-t5-base")
    holders = [
        layer.name
        for layer in model.layers
        if any("relative" in op.path for op in _operators(model, layer.name, Embedding))
    ]
    assert holders == ["encoder.0", "decoder.0"]
    biased = [core.relative for side in ("encoder.3", "decoder.3") for core in model.attentions(side)]
    assert biased == [True, True, False]


def test_t5_1_1_has_a_head_of_its_own() -> None:
    tied, own = from_catalog("t5-small"), from_catalog("flan-t5-small")
    assert tied.ties[0].copies[-1] == "lm_head.weight"
    assert "lm_head.weight" not in own.ties[0].copies
    assert own.by_name["head"].parameters > 32128 * 512


def test_a_stage_of_swin_has_a_quarter_of_the_positions_of_the_one_before() -> None:
    model = from_catalog("swin-base")
    assert [stream.length for stream in model.streams.values()] == [3136, 784, 196, 49]
    assert model.by_name["stage2.0"].reads == ("merge1",)
    assert {core.block for layer in model.layers for core in model.attentions(layer.name)} == {49}


def test_windows_that_an_image_does_not_fill_are_padded() -> None:
    config = {
        "model_type": "swin",
        "image_size": 60,
        "patch_size": 4,
        "depths": [1],
        "num_heads": [2],
        "window_size": 4,
    }
    model = from_config(config)
    assert model.streams["stage1"].length == 15 * 15
    assert [core.positions for core in model.attentions("stage1.0")] == [16 * 16]


def test_whisper_reads_two_frames_for_each_position() -> None:
    model = from_catalog("whisper-large-v3")
    first, second = _operators(model, "encoder_embed", Convolution)
    assert (first.positions, second.input_positions, model.streams["audio"].length) == (3000, 3000, 1500)
    assert (model.streams["tokens"].length, model.streams["tokens"].limit) == (None, 448)


def test_positions_of_roberta_start_after_the_padding_tokens() -> None:
    limits = [from_catalog(name).streams["tokens"].limit for name in ("bert-base", "roberta-base")]
    assert limits == [512, 512]


def test_llava_leaves_the_end_of_its_tower_unused() -> None:
    model = from_catalog("llava-1.5-7b")
    assert model.by_name["projector"].reads == ("vision.22",)
    assert model.unused == {"vision.23", "vision_norm"}
    assert model.by_name["embed"].reads == ("projector",)
    assert {core.block for core in model.attentions("vision.0")} == {24 * 24 + 1}
    assert [from_catalog(name).unused for name in ("qwen2-vl-7b", "clip-vit-l", "t5-small")] == [frozenset()] * 3


def test_both_towers_of_clip_meet_at_the_end() -> None:
    model = from_catalog("clip-vit-l")
    assert model.by_name["contrast"].reads == ("vision_head", "text_head")
    assert model.batch_statistics
    (contrast,) = _operators(model, "contrast", Contrast)
    assert contrast.flops(work_of(contrast, 8, {"tokens": 5}, "tokens")).forward == 2 * 8 * 8 * 768


_SWIN = {"model_type": "swin", "depths": [1, 1], "num_heads": [2, 2]}
_LLAVA = {"model_type": "llava"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "bert", "is_decoder": True}, "is_decoder: only false is known"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type: only 'absolute'"),
        ({"model_type": "roberta", "max_position_embeddings": 2}, "max_position_embeddings: 2 rows leave none"),
        ({"model_type": "distilbert", "dim": 8, "hidden_size": 9}, "dim: 8 contradicts hidden_size, which is 9"),
        ({"model_type": "t5", "feed_forward_proj": "gate-gelu"}, "feed_forward_proj: must be a function or 'gated-'"),
        ({"model_type": "t5", "num_decoder_layers": 0}, "num_decoder_layers: must be a whole number from 1"),
        ({"model_type": "vit", "image_size": [224]}, "image_size: must be a size, or a height and a width"),
        ({"model_type": "vit", "patch_size": [16, 300]}, "patch_size: a patch of 16 x 300 is larger than the image"),
        ({"model_type": "vit", "num_labels": 3, "id2label": {"0": "a"}}, "num_labels: 3 contradicts id2label, which"),
        (_SWIN | {"num_heads": [2]}, "num_heads: has 1 stages, but depths has 2"),
        (_SWIN | {"num_heads": [2, 5]}, "num_heads: 5 heads do not divide the 192 of stage 2"),
        (_SWIN | {"image_size": 32}, "window_size: 7 is more than the 4 x 4 patches of stage 2"),
        (_SWIN | {"mlp_ratio": "4"}, "mlp_ratio: must be a number over 0"),
        (_SWIN | {"use_absolute_embeddings": True, "image_size": 225}, "use_absolute_embeddings: needs images that"),
        ({"model_type": "whisper", "encoder_layerdrop": 0.1}, "encoder_layerdrop: only 0 is known"),
        (_LLAVA | {"vision_feature_layer": -26}, "vision_feature_layer: must be one of, or a list of, whole numbers"),
        (_LLAVA | {"vision_feature_layer": [-1, 24]}, "vision_feature_layer: names no layer, or one twice"),
        (_LLAVA | {"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy: only 'default'"),
        (_LLAVA | {"vision_config": {"model_type": "clip"}}, "vision_config: model_type: 'clip' is not known; known:"),
        (_LLAVA | {"text_config": {"model_type": "gpt2"}}, "text_config: model_type: 'gpt2' is not known"),
        ({"model_type": "qwen2_vl"}, "vision_config: hidden_size: 3584 is not the language model's, which is 8192"),
    ],
)
def test_what_these_families_do_not_do_is_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_config(config)
    assert said in str(caught.value)
