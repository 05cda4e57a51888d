"""The models of the golden plans are the public ones: every path exists, every parameter stands once, totals agree."""

from collections import Counter
from functools import cache
from typing import Any

import pytest

from meshwright.model.operators import work_of
from meshwright.model.resolve import from_catalog, resolve_model
from meshwright.model.spec import Layer, ModelSpec
from tests.plans.golden import HERE

torch = pytest.importorskip("torch", reason="needs the extra 'train'")
transformers = pytest.importorskip("transformers", reason="needs the extra 'train'")

EXTRA = {"deepseek-v3": "mtp"}
"""A layer that transformers leaves out."""

VISION = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16}
TEXT = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
TEXT |= {"num_key_value_heads": 4, "vocab_size": 152064}
WHISPER = {"d_model": 1280, "num_mel_bins": 128, "vocab_size": 51866}
WHISPER |= {"encoder_layers": 32, "encoder_ffn_dim": 5120, "encoder_attention_heads": 20}
WHISPER |= {"decoder_layers": 32, "decoder_ffn_dim": 5120, "decoder_attention_heads": 20}
MIXTRAL = {"hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56, "vocab_size": 32000}
MIXTRAL |= {"num_attention_heads": 48, "num_key_value_heads": 8}
INTERNLM = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
SMOLLM = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}

# File, or name in the catalogue → the published parameters, the class in transformers, and the fields of its
# configuration that are no defaults.
MODELS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "deepseek-v3.yaml": (671_026_404_352, "DeepseekV3ForCausalLM", {}),
    "mixtral-8x22b": (140_620_634_112, "MixtralForCausalLM", MIXTRAL),
    "t5-11b": (
        11_307_321_344,
        "T5ForConditionalGeneration",
        {"d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_heads": 128, "num_layers": 24},
    ),
    "whisper-large-v3": (1_543_490_560, "WhisperForConditionalGeneration", WHISPER),
    "qwen2-vl-7b": (
        8_291_375_616,
        "Qwen2VLForConditionalGeneration",
        {"text_config": TEXT, "vision_config": VISION, "tie_word_embeddings": False},
    ),
    "resnet-50.yaml": (25_557_032, "ResNetForImageClassification", {"num_labels": 1000}),
    "bloom-176b.yaml": (
        176_247_271_424,
        "BloomForCausalLM",
        {"vocab_size": 250880, "hidden_size": 14336, "n_layer": 70, "n_head": 112},
    ),
    "megatron-gpt-175b/config.json": (
        174_615_846_912,
        "GPT2LMHeadModel",
        {"n_embd": 12288, "n_head": 96, "n_layer": 96, "n_positions": 2048, "vocab_size": 51200},
    ),
    "internlm-7b/config.json": (
        7_321_948_160,
        "LlamaForCausalLM",
        INTERNLM | {"vocab_size": 103168, "attention_bias": True},
    ),
    "smollm-135m/config.json": (
        134_515_008,
        "LlamaForCausalLM",
        SMOLLM | {"num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True},
    ),
}
each_model = pytest.mark.parametrize("file", MODELS)


@cache
def spec(file: str) -> ModelSpec:
    path = HERE / "models" / file
    return resolve_model(path if path.exists() else file)


@cache
def module(file: str) -> Any:
    """The public model without memory."""
    _, name, fields = MODELS[file]
    kind = getattr(transformers, name)
    with torch.device("meta"):
        return kind(kind.config_class(**fields))


def shared_layers(file: str) -> list[Layer]:
    """The layers that transformers has too."""
    return [layer for layer in spec(file).layers if layer.name != EXTRA.get(spec(file).name)]


@each_model
def test_the_parameters_are_as_many_as_published(file: str) -> None:
    ours = sum(layer.parameters for layer in shared_layers(file))
    theirs = sum(parameter.numel() for parameter in module(file).parameters())
    assert ours == theirs == MODELS[file][0]


@each_model
def test_every_parameter_is_one_operators(file: str) -> None:
    numbers = {name: parameter.numel() for name, parameter in module(file).named_parameters()}
    holders: Counter[str] = Counter()
    for layer in shared_layers(file):
        for operator in (operator for operator in layer.stack.operators if operator.parameters()):
            path = layer.module_path(operator.path)
            held = [name for name in numbers if name == path or name.startswith(path + ".")]
            assert sum(numbers[name] for name in held) == operator.parameters(), path
            holders.update(held)
    assert holders == Counter(dict.fromkeys(numbers, 1))


@each_model
def test_every_parameter_is_in_one_layers_modules(file: str) -> None:
    names = [name for name, _ in module(file).named_parameters()]
    paths = [path + "." for layer in shared_layers(file) for path in layer.modules]
    holders = Counter(name for name in names for path in paths if name.startswith(path))
    assert holders == Counter(names)


@each_model
def test_every_path_is_a_module(file: str) -> None:
    known = {name for name, _ in module(file).named_modules()}
    wanted = {path for layer in shared_layers(file) for path in layer.modules} | set(spec(file).shared)
    wanted |= {
        layer.module_path(operator.path)
        for layer in shared_layers(file)
        for operator in layer.stack.operators
        if operator.path and not operator.parameters()
    }
    assert wanted <= known


@each_model
def test_ties_are_the_models_own(file: str) -> None:
    by_tensor: dict[int, set[str]] = {}
    for name, parameter in module(file).named_parameters(remove_duplicate=False):
        by_tensor.setdefault(id(parameter), set()).add(name)
    known = {name for names in by_tensor.values() for name in names}
    ties = [known.intersection((tie.owner, *tie.copies)) for tie in spec(file).ties]
    assert all(tie.owner in known for tie in spec(file).ties)
    assert [names for names in ties if len(names) > 1] == [names for names in by_tensor.values() if len(names) > 1]


@pytest.mark.parametrize(("file", "size"), [("gpt-14.6b", 14.6e9), ("gpt-70b", 70e9)])
def test_a_model_of_a_paper_has_the_size_that_names_it(file: str, size: float) -> None:
    assert spec(f"{file}/config.json").parameters == pytest.approx(size, rel=0.015)


def test_deepseek_trains_a_prediction_module_of_its_published_size() -> None:
    """11.5 B parameters of its own beside the shared embedding and head (README_WEIGHTS.md, in round numbers)."""
    assert spec("deepseek-v3.yaml").by_name["mtp"].parameters == pytest.approx(11.5e9, rel=0.02)


def test_deepseek_is_the_catalogues_but_for_the_prediction_module() -> None:
    """This one is written by hand, so it holds the reader of configurations to what the report says."""
    assert shared_layers("deepseek-v3.yaml") == list(from_catalog("deepseek-v3").layers)


def test_a_resnet_needs_the_published_operations_for_an_image() -> None:
    """4.089 G multiply-adds at 224 x 224 (torchvision, ResNet50_Weights._ops)."""
    operators = [op for layer in spec("resnet-50.yaml").layers for op in layer.stack.operators]
    flops = sum(op.flops(work_of(op, 1, {"images": 1}, "images")).forward for op in operators)
    assert flops / 2 == pytest.approx(4.089e9, rel=0.001)
