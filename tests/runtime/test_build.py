"""A module on meta becomes each rank's part alone, with the values that one process would give it."""

import gc
import time
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

import meshwright as mw
from meshwright.errors import PlanError
from meshwright.plan.groups import process_groups
from meshwright.plan.rules import Inputs
from meshwright.runtime import mesh
from meshwright.runtime.initial import InitialValues
from meshwright.runtime.shard import local_part
from meshwright.train.launch import WorkerPool
from tests.cost.build import inputs, llama
from tests.parity.cases import MIXED, SPLITS
from tests.parity.families import FAMILIES
from tests.parity.harness import SEED, Case, batches, build, plan_of, recipe_of
from tests.parity.pipelines import PIPELINES
from tests.runtime.counting import noted_peak

CPU = torch.device("cpu")
CASES = {
    "unlike neighbours": MIXED["tp 4, then tp 2 with zero3"],
    "tied, an odd vocabulary": SPLITS["tied zero1 and tp+sp, an odd vocabulary"],
    "a tied pipeline": PIPELINES["interleaved, zero1 tied"],
    "a table under three names": FAMILIES["t5, padded, its one table in shards, recomputed"],
    "a class token": FAMILIES["vit, all dropped"],
}


def _on_meta(case: Case) -> nn.Module:
    with torch.device("meta"):
        return build(case)


def _whole(case: Case) -> nn.Module:
    """The module with the values that one process gives it, which knows nothing of plans."""
    values, module = InitialValues(_on_meta(case), SEED), build(case)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values.make(name, CPU))
    return module


def _both_ways(case: Case) -> list[str]:
    """What differs between a module built on meta and one that was whole: parameters, buffers, losses of two steps."""
    whole, kept = _whole(case), []
    wanted = {name: parameter.detach().clone() for name, parameter in whole.named_parameters()}
    buffers = dict(build(case).named_buffers())
    for module in (_on_meta(case), whole):
        parallel = mw.parallelize(module, plan_of(case), recipe=recipe_of(case))
        found = {name: parallel.full_parameter(name) for name in parallel.names}
        losses = [float(parallel.forward_backward(batch)) for batch in batches(case)[:2]]
        kept.append((found, losses, dict(module.named_buffers())))
    (found, losses, own), (_, whole_losses, _) = kept
    unlike = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    unlike += [name for name in own if not torch.equal(own[name], buffers[name])]
    return unlike + ["losses"] * (losses != whole_losses)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_module_on_meta_starts_and_trains_as_a_whole_one(pool: WorkerPool, case: Case) -> None:
    assert pool.run(_both_ways, case) == [[]] * 4


SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}


def _asked(roles: dict[str, str], sizes: dict[str, Any] = SIZES) -> Inputs:
    mesh = {"node": 2, "gpu": 2} if len(roles) > 1 else {"all": 4}
    precision = {"compute": "fp32", "reduce": "fp32", "master": None}
    return inputs(
        llama(**sizes),
        "cpu:4",
        mesh,
        roles,
        batch=8,
        sequence=16,
        micro_batches=2,
        recipe={"precision": precision, "clip_norm": None},
        execution={"prefetch": 0},
    )


def _llama_on_meta(sizes: dict[str, Any] = SIZES) -> nn.Module:
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="sdpa")).train()


def _built(asked: Inputs) -> tuple[int, int, int, int]:
    """Bytes: the most that the allocator held while a model was built; of this rank's parameters; of the largest
    layer, whole; of the whole model.
    """
    module = _llama_on_meta()
    size = dict.fromkeys((layer.name for layer in asked.model.layers), 0)
    for name, parameter in module.named_parameters():
        size[str(asked.model.layer_of(name))] += parameter.nbytes
    gc.collect()
    peak = noted_peak(lambda: mw.parallelize(module, asked.plan, recipe=asked.recipe))
    return peak, sum(local_part(each).nbytes for each in module.parameters()), max(size.values()), sum(size.values())


@pytest.mark.parametrize("roles", [{"all": "dp/zero3"}, {"node": "dp/zero2", "gpu": "tp"}], ids=str)
def test_no_rank_holds_more_than_its_part_and_a_layer(pool: WorkerPool, roles: dict[str, str]) -> None:
    for peak, part, layer, whole in pool.run(_built, _asked(roles)):
        assert part < 0.26 * whole
        assert peak <= 1.3 * part + layer < 0.6 * whole


DEEP = SIZES | {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 80}


def _applied(asked: Inputs) -> tuple[float, int]:
    """Seconds of the CPU to build a deep model under a plan, and the process groups that there are then."""
    mesh._made_in.cache_clear()
    module, start = _llama_on_meta(DEEP), time.process_time()
    parallel = mw.parallelize(module, asked.plan, recipe=asked.recipe)
    return time.process_time() - start, len(parallel.place.processes._made.handles)


def test_a_deep_model_is_built_in_seconds_with_a_group_for_each_set_of_ranks(pool: WorkerPool) -> None:
    asked = _asked({"node": "dp/zero3", "gpu": "tp"}, DEEP)
    sets = {frozenset(ranks) for each in process_groups(asked.plan) for ranks in each.ranks} | {frozenset(range(4))}
    for seconds, groups in pool.run(_applied, asked, timeout=120.0):
        assert groups == len(sets) == 5
        assert seconds < 10


def _refused(module: nn.Module) -> str:
    with pytest.raises(PlanError) as error:
        InitialValues(module, SEED)
    return str(error.value)


def test_what_has_no_initialisation_of_its_own_is_named() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("meta")
    module[1].register_buffer("places", torch.arange(3, device="meta"))
    assert "'1.places' has no values (it is on meta), and the module's own initialisation" in _refused(module)
    del module[1].places
    module[1]._init_weights = lambda _: None  # type: ignore[assignment]
    assert InitialValues(module, SEED).make("1.weight", CPU).any()
    module._init_weights = lambda _: None  # type: ignore[assignment]
    assert "Sequential has a method _init_weights, which says nothing of when" in _refused(module)


class _Scaled(nn.Linear):
    """Draws that depend on values, a value of another tensor, a part that is overwritten."""

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)
        nn.init.trunc_normal_(self.bias, std=0.02, a=-0.02, b=0.02)
        self.weight.data[1:2].zero_()
        self.bias.data.add_(self.weight.data[0].abs().sum())


def test_an_initialisation_is_replayed_by_name_whatever_is_made_before() -> None:
    module = nn.ModuleDict({"a": _Scaled(8, 8, device="meta"), "b": _Scaled(8, 8, device="meta")})
    values, before = InitialValues(module, SEED), torch.get_rng_state()
    bias, weight = values.make("a.bias", CPU), values.make("a.weight", CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert not weight[1].any()
    product = weight @ weight.T - torch.eye(8)
    product[1, 1] = 0
    assert product.abs().max() < 1e-6
    assert (bias - weight[0].abs().sum()).abs().max() <= 0.021
    assert not torch.equal(values.make("b.weight", CPU), weight)
    assert not torch.equal(InitialValues(module, SEED + 1).make("a.weight", CPU), weight)
    assert torch.equal(InitialValues(module["a"], SEED).make("weight", CPU)[1], weight[1])


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_distributions_are_those_of_transformers(name: str) -> None:
    config: Any = AutoConfig.for_model(name, **TINY[name])
    kind = AutoModelForCausalLM if name == "gpt2" else AutoModelForImageClassification
    torch.manual_seed(SEED)
    real = kind.from_config(config)
    with torch.device("meta"):
        values = InitialValues(kind.from_config(config), SEED)
    for each, tensor in [*real.requires_grad_(False).named_parameters(), *real.named_buffers()]:
        made = values.make(each, CPU)
        assert (made.shape, made.dtype) == (tensor.shape, tensor.dtype)
        if tensor.numel() < 256 or not tensor.float().std():
            assert made.mean() == pytest.approx(float(tensor.mean()), abs=0.1), each
        else:
            assert made.std() == pytest.approx(float(tensor.std()), rel=0.15), each


TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 64, "n_embd": 32, "n_layer": 8, "n_head": 4, "n_positions": 16},
    "vit": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
}
"""GPT-2 draws some matrices narrower than others, ViT draws from a truncated distribution."""
