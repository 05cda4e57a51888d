"""How many parameters one token uses of a mixture of experts: as many as its makers say."""

import pytest

from meshwright.model.resolve import catalog_names, from_catalog

# Name → billions that a token uses, as published, and whether the makers leave the embedding of tokens out.
ACTIVE = {
    "deepseek-v2": (21, False),  # arXiv 2405.04434, abstract
    "deepseek-v2-lite": (2.4, True),  # arXiv 2405.04434, appendix B
    "deepseek-v3": (37, False),  # arXiv 2412.19437, abstract
    "gpt-oss-120b": (5.13, True),  # arXiv 2508.10925, table 1
    "gpt-oss-20b": (3.61, True),  # arXiv 2508.10925, table 1
    "jamba-v0.1": (12, False),  # arXiv 2403.19887, abstract
    "kimi-k2": (32.6, False),  # arXiv 2507.20534, table 2
    "mixtral-8x22b": (39, False),  # Mistral AI, Cheaper, Better, Faster, Stronger, 2024-04
    "mixtral-8x7b": (12.9, False),  # Mistral AI, Mixtral of experts, 2023-12
    "olmoe-1b-7b": (1.3, False),  # arXiv 2409.02060, abstract
    "phi-3.5-moe": (6.6, False),  # Hugging Face microsoft/Phi-3.5-MoE-instruct
    "qwen1.5-moe-a2.7b": (2.7, False),  # Qwen, Qwen1.5-MoE, 2024-03
    "qwen2-57b-a14b": (14, False),  # arXiv 2407.10671, table 1
    "qwen3-235b-a22b": (22, False),  # arXiv 2505.09388, abstract
    "qwen3-30b-a3b": (3.3, False),  # Hugging Face Qwen/Qwen3-30B-A3B
    "qwen3-coder-480b-a35b": (35, False),  # Hugging Face Qwen/Qwen3-Coder-480B-A35B-Instruct
}


@pytest.mark.parametrize(("name", "billions", "bare"), [(name, *said) for name, said in ACTIVE.items()])
def test_a_token_uses_the_published_number_of_parameters(name: str, billions: float, bare: bool) -> None:
    model = from_catalog(name)
    table = model.by_name["embed"].parameters if bare else 0
    assert (model.active_parameters - table) / 1e9 == pytest.approx(billions, rel=0.022)


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", "116.83"), ("gpt-oss-20b", "20.91")])
def test_gpt_oss_has_the_totals_of_its_card(name: str, billions: str) -> None:
    """arXiv 2508.10925, table 1."""
    assert f"{from_catalog(name).parameters / 1e9:.2f}" == billions


@pytest.mark.parametrize("name", catalog_names())
def test_only_experts_leave_parameters_idle(name: str) -> None:
    model = from_catalog(name)
    mixes = any(part.experts for layer in model.layers for part in layer.stack.parts)
    assert (model.active_parameters < model.parameters) == mixes
