"""What a configuration leaves out, how transformers writes it, and what it may hold by mistake."""

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from meshwright.errors import DocumentError
from meshwright.model.hf_config import from_config
from tests.model.samples.build import Sample
from tests.model.samples.dense import DENSE

REQUIRES_SIZES = {"llama", "gpt2"}
FAMILIES = sorted({sample.config["model_type"] for sample in DENSE} - REQUIRES_SIZES)
EACH_SAMPLE = pytest.mark.parametrize("sample", DENSE, ids=lambda sample: sample.name)
STRANGE: list[Any] = [None, True, False, -1, 0, 1, 3, 1.5, float("nan"), "x", [], ["x"], {}, {"x": 1}, 10**12]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_left_out_is_what_transformers_puts_there(family: str) -> None:
    settings = AutoConfig.for_model(family)
    spec = from_config({"model_type": family})
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(settings)
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


def _said(config: dict[str, Any]) -> str:
    try:
        from_config(config)
    except DocumentError as error:
        return str(error)
    return ""
