"""The proof that every role must pass: many processes under a plan against one process that knows nothing of plans.

The one process is a plain module, a plain loop, torch's own loss, AdamW and clipping. Both see the same
micro-batches, with unequal numbers of tokens that count. How well they have to agree is `tests.parity.verdict`'s.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import meshwright as mw
import meshwright.runtime.parallelize
from meshwright.plan.spec import Group, ModelRef, Plan, Recompute, Role, parse_role
from meshwright.runtime import randomness
from meshwright.runtime.precision import kept
from tests.parity.encoders import FAMILIES as OTHERS
from tests.parity.encoders import KEPT
from tests.parity.models import BUILDERS, CALLS_DROPOUT, with_own_vectors
from tests.runtime.counting import CountMessages, Counts, Messages

SAMPLES, LENGTH, STEPS, CLIP, SEED = 8, 12, 3, 0.5, 1234

Fault = Callable[[], AbstractContextManager[Any]]
"""Something planted in the workers alone."""


@dataclass(frozen=True)
class Case:
    """One thing to prove: a model, and the roles of its layers on a mesh."""

    rows: dict[str, dict[str, str]]
    """Span of layers → roles by axis."""
    mesh: dict[str, int]
    family: str = "llama"
    micro_batches: int = 2
    dtype: torch.dtype = torch.float64
    dropout: float = 0.0
    tied: bool = False
    attention_dropout: float = 0.0
    kv_heads: int = 4
    """Of Llama."""
    vocabulary: int = 64
    length: int = LENGTH
    """Positions of a sample."""
    padded: bool = False
    """Samples of unequal length, with an attention mask."""
    execution: dict[str, Any] = field(default_factory=dict)
    changing: bool = False
    """Batches of another length in each step."""
    schedule: str = "1f1b"
    experts: dict[str, dict[str, str]] = field(default_factory=dict)
    """Span → the roles of its routed experts, where they have a row of their own."""
    groups: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    """Of a pipeline, in place of the mesh: name → devices, mesh."""
    stages: tuple[tuple[str, dict[str, dict[str, str]]], ...] = ()
    """Of a pipeline, in place of the rows: group, rows."""
    recompute: dict[str, Recompute] = field(default_factory=dict)
    """Span → what its layers recompute, where that is not nothing."""
    chunks: int = 1
    """Of the loss."""
    samples: int = SAMPLES
    """Of a global batch."""
    steps: int = STEPS
    layers: int = 4
    heads: int | None = None
    """Of attention, where not the family's usual number here."""
    hidden: int = 32

    @property
    def roles(self) -> set[Role]:
        """All that its rows have; not those of experts that have a row of their own."""
        every = (self.rows, *(rows for _, rows in self.stages))
        return {parse_role(role) for rows in every for row in rows.values() for role in row.values()}

    @property
    def resting(self) -> torch.dtype:
        """What parameters are kept in: masters, where it computes in bf16."""
        return torch.float32 if self.dtype == torch.bfloat16 else self.dtype

    @property
    def world_size(self) -> int:
        """Processes."""
        meshes = [mesh for _, mesh in self.groups.values()] or [self.mesh]
        return sum(Group(devices=(0,), mesh=mesh).mesh_size for mesh in meshes)


@dataclass(frozen=True)
class Outcome:
    """What a run gave: a loss and a gradient norm for each step, the first step's gradients, the last parameters; and
    what moved in the second step.
    """

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    moved: tuple[Counts, Messages] = field(default_factory=lambda: (Counter(), Counter()))


def build(case: Case) -> nn.Module:
    """The untouched transformers model, initialised from one seed."""
    torch.manual_seed(SEED)
    if case.family in BUILDERS or case.family in OTHERS:
        builder = BUILDERS[case.family] if case.family in BUILDERS else OTHERS[case.family].build
        return with_own_vectors(builder(case)).to(case.resting).train()
    config: Any
    if case.family == "llama":
        config = LlamaConfig(
            vocab_size=case.vocabulary,
            hidden_size=case.hidden,
            intermediate_size=48,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads or 8,
            num_key_value_heads=case.kv_heads,
            max_position_embeddings=case.length,
            attention_dropout=case.attention_dropout,
            tie_word_embeddings=case.tied,
        )
        return LlamaForCausalLM(config).to(case.resting).train()
    config = GPT2Config(
        vocab_size=case.vocabulary,
        n_embd=case.hidden,
        n_layer=case.layers,
        n_head=case.heads or 4,
        n_positions=case.length,
        resid_pdrop=case.dropout,
        embd_pdrop=case.dropout,
        attn_pdrop=case.attention_dropout,
        tie_word_embeddings=case.tied,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).to(case.resting).train()


def batches(case: Case) -> list[dict[str, Tensor]]:
    """A global batch for each step; about a quarter of the tokens do not count, unevenly over the samples."""
    generator = torch.Generator().manual_seed(SEED)
    if case.family in OTHERS:
        return [OTHERS[case.family].feed(case, generator) for _ in range(case.steps)]
    made = []
    for _ in range(case.steps):
        ids = torch.randint(0, case.vocabulary, (case.samples, case.length), generator=generator)
        chance = torch.linspace(0.0, 0.5, case.samples)[:, None]
        dropped = torch.rand(case.samples, case.length, generator=generator) < chance
        batch = {"input_ids": ids, "labels": ids.masked_fill(dropped, -100)}
        if case.padded:
            real = torch.arange(case.length) < case.length - torch.arange(case.samples)[:, None]
            batch = {
                "input_ids": ids,
                "labels": batch["labels"].masked_fill(~real, -100),
                "attention_mask": real.long(),
            }
        short = 2 * len(made) % 5 if case.changing else 0  # 0, 2, 4
        made.append({name: tensor[:, : case.length - short] for name, tensor in batch.items()})
    return made


def plan_of(case: Case) -> Plan:
    """The case as a plan for `cpu:N`."""
    stages = case.stages or (("all", case.rows),)
    groups = case.groups or {"all": (f"0-{case.world_size - 1}", case.mesh)}
    return Plan.from_data(
        {
            "meshwright_plan": 1,
            "model": ModelRef(name=case.family).as_data(),
            "cluster": {"name": f"cpu:{case.world_size}"},
            "recipe": {"global_batch": case.samples, "sequence": _lengths(case)},
            "micro_batches": case.micro_batches,
            "schedule": case.schedule,
            "groups": {name: {"devices": devices, "mesh": mesh} for name, (devices, mesh) in groups.items()},
            "stages": [{"on": group, "layers": _rows(case, rows)} for group, rows in stages],
            "execution": case.execution,
        }
    )


def _rows(case: Case, rows: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    found = [{"span": span, "roles": roles, "recompute": _recompute(case, span)} for span, roles in rows.items()]
    experts = {span: roles for span, roles in case.experts.items() if span in rows}
    return found + [
        {"span": span, "part": "experts", "roles": roles, "recompute": _recompute(case, span)}
        for span, roles in experts.items()
    ]


def _recompute(case: Case, span: str) -> Any:
    how = case.recompute.get(span, "none")
    return how if isinstance(how, str) else how.as_data()


def recipe_of(case: Case) -> Any:
    """The recipe: one dtype throughout, or bf16 with masters in float32."""
    name = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16"}[case.dtype]
    precision = {"compute": name, "reduce": name, "master": None}
    if case.resting != case.dtype:
        precision |= {"reduce": "fp32", "master": "fp32"}
    return mw.recipe(
        global_batch=case.samples,
        sequence=_lengths(case),
        precision=precision,
        seed=SEED,
        loss={"kind": _loss(case), "chunks": case.chunks},
        micro_batches=case.micro_batches,
    )


def _lengths(case: Case) -> Any:
    return OTHERS[case.family].lengths(case) if case.family in OTHERS else case.length


def _loss(case: Case) -> str:
    return OTHERS[case.family].loss if case.family in OTHERS else "causal_lm"


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    """AdamW with a rate that makes three steps count."""
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)


class SplitProducts(TorchFunctionMode):
    """Matrix products summed in `pieces` along the inner dim: the same mathematics in another order of summation."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.pieces = pieces

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Cut the inner dim of `linear` and `addmm`."""
        if func is functional.linear:
            x, weight, bias = (*args, None)[:3]
            out = sum(a @ b.T for a, b in zip(x.chunk(self.pieces, -1), weight.chunk(self.pieces, 1), strict=True))
            return out if bias is None else out + bias
        if func is torch.addmm:
            bias, x, weight = args
            return bias + sum(a @ b for a, b in zip(x.chunk(self.pieces, 1), weight.chunk(self.pieces, 0), strict=True))
        return func(*args, **(kwargs or {}))


_SITE = "model.layers.{}.self_attn.attn_dropout"
SITES = {
    **dict.fromkeys(("llama", "mixtral", "qwen3_moe"), _SITE),
    "gpt2": "transformer.h.{}.attn.attn_dropout",
}


class DropsAttention(TorchFunctionMode):
    """Lets the dropout of transformers' own eager attention [samples, heads, queries, keys] draw from a counter."""

    def __init__(self, site: str, layers: int, counter: randomness.Counter) -> None:
        super().__init__()
        self.site, self.layers, self.counter, self.calls = site, layers, counter, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Layer after layer, as the model calls them."""
        if func is functional.dropout and args[0].dim() == 4:
            key, probability = self.counter.key(self.site.format(self.calls % self.layers)), (kwargs or {})["p"]
            self.calls += 1
            first, device = self.counter.first_sample, args[0].device
            kept = randomness.keep_mask(args[0].shape, probability, key=key, first_sample=first, device=device)
            return args[0] * kept / (1 - probability)
        return func(*args, **(kwargs or {}))


_OF_THE_PLAN = ("rows", "mesh", "experts", "groups", "stages", "execution", "schedule", "recompute", "chunks")
"""What of a case the one process knows nothing of."""


def one_process(case: Case, *, backwards: bool = False, pieces: int = 1) -> Outcome:
    """The reference, run once for all cases that differ in their plans alone. `backwards` (samples in the opposite
    order) and `pieces` change nothing but orders of summation.
    """
    names = (each.name for each in fields(Case) if each.name not in _OF_THE_PLAN)
    return _one_process(tuple((name, getattr(case, name)) for name in names), backwards, pieces)


@cache
def _one_process(settings: tuple[tuple[str, Any], ...], backwards: bool, pieces: int) -> Outcome:
    with SplitProducts(pieces) if pieces > 1 else nullcontext():
        return _reference(Case({}, {}, **dict(settings)), backwards)


def _reference(case: Case, backwards: bool) -> Outcome:
    module = build(case)
    counter = randomness.Counter(SEED)
    drops = case.attention_dropout or (case.dropout and case.family == "t5")
    if drops:
        module.set_attn_implementation("eager")  # type: ignore[operator]
    if drops and case.family not in OTHERS:
        with DropsAttention(SITES[case.family], case.layers, counter):
            return _trained(module, case, backwards, counter)
    return _trained(module, case, backwards, counter)


def _trained(masters: nn.Module, case: Case, backwards: bool, counter: randomness.Counter) -> Outcome:
    module = masters if case.resting == case.dtype else _narrow_copy(masters, case.dtype)
    _draw_dropout(module, case, counter)
    optimizer = optimizer_of(list(masters.parameters()))
    losses, norms, gradients = [], [], {}
    for step, batch in enumerate(batches(case)):
        counter.step = step
        losses.append(_plain_step(masters, module, batch, case, counter, backwards=backwards))
        if step == 0:
            named = masters.named_parameters()
            gradients = {name: p.grad.clone() if p.grad is not None else torch.zeros_like(p) for name, p in named}
        norms.append(float(nn.utils.clip_grad_norm_(masters.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    return Outcome(losses, norms, gradients, {name: p.detach().clone() for name, p in masters.named_parameters()})


def _draw_dropout(module: nn.Module, case: Case, counter: randomness.Counter) -> None:
    samples = case.samples // case.micro_batches
    paths = [
        path.format(number)
        for path, layers in CALLS_DROPOUT.get(case.family, {}).items()
        for number in range(layers or case.layers)
    ]
    for name, inner in module.named_modules():
        if isinstance(inner, nn.Dropout) and (case.family in KEPT or not any(name.startswith(f"{p}.") for p in paths)):
            randomness.install_dropout(inner, name, counter, lambda: 0)
    for path in paths:
        randomness.draw_calls(module.get_submodule(path), path, counter, lambda: (0, samples))


def _narrow_copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """What is computed with where parameters are masters. Buffers stay as they are."""
    narrow = deepcopy(module)
    for parameter in narrow.parameters():
        parameter.data = parameter.data.to(dtype)
    return narrow


def _taken_over(module: nn.Module, narrow: nn.Module, values: bool) -> None:
    """Masters' values to what is computed with, or its gradients, added up, to the masters."""
    for master, parameter in zip(module.parameters(), narrow.parameters(), strict=True):
        if values:
            parameter.data.copy_(master.data)
        elif parameter.grad is not None:
            wide, parameter.grad = parameter.grad.to(master.dtype), None
            master.grad = wide if master.grad is None else master.grad + wide


def _plain_step(
    masters: nn.Module,
    module: nn.Module,
    batch: dict[str, Tensor],
    case: Case,
    counter: randomness.Counter,
    *,
    backwards: bool,
) -> float:
    if module is not masters:
        _taken_over(masters, module, values=True)
    labels, kind = batch["labels"], _loss(case)
    if kind == "causal_lm":
        labels = functional.pad(labels[:, 1:], (0, 1), value=-100)
    size, total = case.samples // case.micro_batches, 0.0
    for first in range(0, case.samples, size):
        counter.first_sample = first
        taken = slice(first, first + size)
        given = batch if kind == "seq2seq" else {name: each for name, each in batch.items() if name != "labels"}
        inputs = {name: _as_computed(tensor[taken], case.dtype) for name, tensor in given.items()}
        targets = labels[taken]
        if backwards:
            inputs, targets = {name: tensor.flip(0) for name, tensor in inputs.items()}, targets.flip(0)
        with kept(case.dtype):
            logits = module(**inputs).logits if hasattr(module, "config") else module(*inputs.values())
            wide = logits if case.dtype == torch.float64 else logits.float()
            loss = functional.cross_entropy(wide.flatten(0, -2), targets.flatten(), reduction="sum")
            loss = loss / (labels != -100).sum()
            loss.backward()
            if module is not masters:
                _taken_over(masters, module, values=False)
        total += float(loss.detach())
    return total


def _as_computed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def many_processes(case: Case, fault: Fault = nullcontext, model: Any = None) -> Outcome:
    """Runs on every rank: the same steps under the case's plan; the whole tensors, gathered. `model` is the description
    of a module that has no configuration.
    """
    with fault():
        module = build(case)
        parallel = mw.parallelize(module, plan_of(case), model=model, recipe=recipe_of(case))
        optimizer = optimizer_of(parallel.parameter_groups())
        losses, norms, gradients = [], [], {}
        counting = CountMessages(stages=bool(case.stages))
        for step, batch in enumerate(batches(case)):
            with counting if step == case.steps - 2 > 0 and fault is nullcontext else nullcontext():
                losses.append(float(parallel.forward_backward(batch)))
                if step == 0:
                    gradients = {name: parallel.full_gradient(name) for name in parallel.names}
                norms.append(float(parallel.clip_grad_norm_(CLIP)))
            optimizer.step()
            optimizer.zero_grad()
        parameters = {name: parallel.full_parameter(name) for name in parallel.names}
    return Outcome(losses, norms, gradients, parameters, (counting.counts, counting.messages))


def in_bf16(case: Case) -> Case:
    """The same case in bf16, with masters in float32."""
    return replace(case, dtype=torch.bfloat16)


def in_float32(case: Case) -> Case:
    """The same case in float32."""
    return replace(case, dtype=torch.float32)
