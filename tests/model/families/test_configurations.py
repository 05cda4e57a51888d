"""What a configuration leaves out, how transformers writes it, and what it may hold by mistake."""

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from meshwright.errors import DocumentError
from meshwright.model.hf_config import from_config
from tests.model.samples import SAMPLES
from tests.model.samples.build import Sample

REQUIRES_SIZES = {"deepseek_v2", "llama", "gpt2"}
CONTRADICT = {"qwen2_vl"}
"""What transformers puts there does not go together: its tower's output is not as wide as its language model."""
FAMILIES = {sample.config["model_type"]: sample.auto for sample in reversed(SAMPLES)}  # of several the first
EACH_SAMPLE = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
STRANGE: list[Any] = [None, True, False, -1, 0, 1, 3, 1.5, float("nan"), "x", [], ["x"], {}, {"x": 1}, 10**12]


def _inner(config: dict[str, Any]) -> list[str]:
    """The fields that are configurations themselves."""
    return [name for name in ("text_config", "vision_config") if isinstance(config.get(name), dict)]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - REQUIRES_SIZES - CONTRADICT))
def test_what_is_left_out_is_what_transformers_puts_there(family: str) -> None:
    settings = AutoConfig.for_model(family)
    spec = from_config({"model_type": family})
    with torch.device("meta"):
        module = getattr(transformers, FAMILIES[family]).from_config(settings)
    assert spec.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert spec.stacks == from_config(settings.to_dict()).stacks


@EACH_SAMPLE
def test_a_configuration_reads_the_same_as_transformers_writes_it(sample: Sample) -> None:
    fields = {name: value for name, value in sample.config.items() if name != "model_type"}
    written = AutoConfig.for_model(sample.config["model_type"], **fields).to_dict()
    assert from_config(written, sample.name) == sample.spec


@EACH_SAMPLE
def test_strange_values_are_read_or_named(sample: Sample) -> None:
    """A wrong value anywhere is a DocumentError that names the field, or one that it contradicts."""
    settings = AutoConfig.for_model(sample.config["model_type"]).to_dict()
    for field in {*sample.config, *settings} - {"model_type"}:
        for value in STRANGE:
            said = _said(sample.config | {field: value})
            assert not said or said.startswith("config: "), (field, value)


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if _inner(sample.config)], ids=lambda sample: sample.name
)
def test_strange_values_within_are_read_or_named(sample: Sample) -> None:
    for part in _inner(sample.config):
        for field in sample.config[part]:
            for value in STRANGE:
                said = _said(sample.config | {part: sample.config[part] | {field: value}})
                assert not said or said.startswith("config: "), (part, field, value)


def _said(config: dict[str, Any]) -> str:
    try:
        from_config(config)
    except DocumentError as error:
        return str(error)
    return ""
