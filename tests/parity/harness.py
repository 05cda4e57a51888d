"""The proof that every role must pass: many processes under a plan against one process that knows nothing of plans.

The one process is a plain module, a plain loop, torch's own loss, AdamW and clipping. Both see the same
micro-batches, with unequal numbers of tokens that count. In float64, where real faults cannot hide in rounding, losses,
every gradient and every parameter after three steps agree to 1e-9 of the tensor's largest value. In float32 gradients
agree to 2e-5, and parameters to three times what the one process differs by between two orders of summation.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import meshwright as mw
import meshwright.runtime.parallelize
from meshwright.plan.spec import Group, ModelRef, Plan
from meshwright.runtime.precision import kept
from meshwright.runtime.randomness import Counter, install_dropout
from meshwright.train.launch import WorkerPool

SAMPLES, LENGTH, STEPS, CLIP, SEED = 8, 12, 3, 0.5, 1234
EXACT, GRADIENT_32, SPREADS = 1e-9, 2e-5, 3.0

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
    padded: bool = False
    """Samples of unequal length, with an attention mask."""
    execution: dict[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Processes."""
        return Group(devices=(0,), mesh=self.mesh).mesh_size


@dataclass(frozen=True)
class Outcome:
    """What a run gave: a loss and a gradient norm for each step, the first step's gradients, the last parameters."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def build(case: Case) -> nn.Module:
    """The untouched transformers model, initialised from one seed."""
    torch.manual_seed(SEED)
    config: Any
    if case.family == "llama":
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=case.tied,
        )
        return LlamaForCausalLM(config).to(case.dtype).train()
    config = GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=4,
        n_head=4,
        n_positions=LENGTH,
        resid_pdrop=case.dropout,
        embd_pdrop=case.dropout,
        attn_pdrop=0.0,
        tie_word_embeddings=case.tied,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).to(case.dtype).train()


def batches(case: Case) -> list[dict[str, Tensor]]:
    """STEPS global batches; about a quarter of the tokens do not count, unevenly over the samples."""
    generator = torch.Generator().manual_seed(SEED)
    made = []
    for _ in range(STEPS):
        ids = torch.randint(0, 64, (SAMPLES, LENGTH), generator=generator)
        chance = torch.linspace(0.0, 0.5, SAMPLES)[:, None]
        dropped = torch.rand(SAMPLES, LENGTH, generator=generator) < chance
        batch = {"input_ids": ids, "labels": ids.masked_fill(dropped, -100)}
        if case.padded:
            real = torch.arange(LENGTH) < LENGTH - torch.arange(SAMPLES)[:, None]
            batch = {
                "input_ids": ids,
                "labels": batch["labels"].masked_fill(~real, -100),
                "attention_mask": real.long(),
            }
        made.append(batch)
    return made


def plan_of(case: Case, module: nn.Module) -> Plan:
    """The case as a plan for `cpu:N`."""
    rows = [{"span": span, "roles": roles} for span, roles in case.rows.items()]
    return Plan.from_data(
        {
            "meshwright_plan": 1,
            "model": ModelRef(name=case.family).as_data(),
            "cluster": {"name": f"cpu:{case.world_size}"},
            "recipe": {"global_batch": SAMPLES, "sequence": LENGTH},
            "micro_batches": case.micro_batches,
            "groups": {"all": {"devices": f"0-{case.world_size - 1}", "mesh": case.mesh}},
            "stages": [{"on": "all", "layers": rows}],
            "execution": case.execution,
        }
    )


def recipe_of(case: Case) -> Any:
    """The recipe: one dtype throughout."""
    name = {torch.float64: "fp64", torch.float32: "fp32"}[case.dtype]
    precision = {"compute": name, "reduce": name, "master": None}
    return mw.recipe(global_batch=SAMPLES, sequence=LENGTH, precision=precision, seed=SEED)


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


def one_process(case: Case, *, backwards: bool = False, pieces: int = 1) -> Outcome:
    """The reference. `backwards` (samples in the opposite order) and `pieces` change nothing but orders of
    summation.
    """
    with SplitProducts(pieces) if pieces > 1 else nullcontext():
        return _one_process(case, backwards)


def _one_process(case: Case, backwards: bool) -> Outcome:
    module = build(case)
    counter = Counter(SEED)
    for name, inner in module.named_modules():
        if isinstance(inner, nn.Dropout):
            install_dropout(inner, name, counter, lambda: 0)
    optimizer = optimizer_of(list(module.parameters()))
    losses, norms, gradients = [], [], {}
    for step, batch in enumerate(batches(case)):
        counter.step = step
        losses.append(_plain_step(module, batch, case, counter, backwards))
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    return Outcome(losses, norms, gradients, {name: p.detach().clone() for name, p in module.named_parameters()})


def _plain_step(module: nn.Module, batch: dict[str, Tensor], case: Case, counter: Counter, backwards: bool) -> float:
    labels = functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    size, total = SAMPLES // case.micro_batches, 0.0
    for first in range(0, SAMPLES, size):
        counter.first_sample = first
        taken = slice(first, first + size)
        inputs = {name: tensor[taken] for name, tensor in batch.items() if name != "labels"}
        targets = labels[taken]
        if backwards:
            inputs, targets = {name: tensor.flip(0) for name, tensor in inputs.items()}, targets.flip(0)
        with kept(case.dtype):
            logits = module(**inputs, use_cache=False).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            loss = loss / (labels != -100).sum()
            loss.backward()
        total += float(loss.detach())
    return total


def many_processes(case: Case, fault: Fault = nullcontext) -> Outcome:
    """Runs on every rank: the same steps under the case's plan; the whole tensors, gathered."""
    with fault():
        module = build(case)
        parallel = mw.parallelize(module, plan_of(case, module), recipe=recipe_of(case))
        optimizer = optimizer_of(parallel.parameter_groups())
        losses, norms, gradients = [], [], {}
        for step, batch in enumerate(batches(case)):
            losses.append(float(parallel.forward_backward(batch)))
            if step == 0:
                gradients = {name: parallel.full_gradient(name) for name in parallel.layouts}
            norms.append(float(parallel.clip_grad_norm_(CLIP)))
            optimizer.step()
            optimizer.zero_grad()
        parameters = {name: parallel.full_parameter(name) for name in parallel.layouts}
    return Outcome(losses, norms, gradients, parameters)


def relative(found: Tensor, wanted: Tensor) -> float:
    """The largest difference as a share of the wanted tensor's largest value."""
    largest = float(wanted.abs().max())
    return float((found.double() - wanted.double()).abs().max()) / (largest or 1.0)


def worst(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[float, str]:
    """The tensor that differs most, and by how much."""
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    return max((relative(found[name], wanted[name]), name) for name in wanted)


@dataclass(frozen=True)
class Verdict:
    """The largest differences, each over its limit's unit, and the sentence that says them."""

    loss: float
    norm: float
    gradient: tuple[float, str]
    parameter: tuple[float, str]
    limits: tuple[float, float, float, float]

    @property
    def holds(self) -> bool:
        """True where every difference is within its limit. Not-a-number is never within."""
        found = (self.loss, self.norm, self.gradient[0], self.parameter[0])
        return all(difference <= limit for difference, limit in zip(found, self.limits, strict=True))

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.1e} (limit {self.limits[0]:.1e}), norm {self.norm:.1e} ({self.limits[1]:.1e}), "
            f"gradient {self.gradient[0]:.1e} in {self.gradient[1]} ({self.limits[2]:.1e}), "
            f"parameter {self.parameter[0]:.1e} in {self.parameter[1]} ({self.limits[3]:.1e})"
        )


def own_spread(case: Case, wanted: Outcome) -> float:
    """How much one process differs from itself, at most, over a few orders of summation."""
    orders = [one_process(case, backwards=back, pieces=pieces) for back, pieces in ((True, 1), (False, 2), (True, 4))]
    return max(worst(other.parameters, wanted.parameters)[0] for other in orders)


def limits_of(case: Case, wanted: Outcome) -> tuple[float, float, float, float]:
    """What loss, norm, gradients and parameters may differ by."""
    if case.dtype == torch.float64:
        return EXACT, EXACT, EXACT, EXACT
    return GRADIENT_32, GRADIENT_32, GRADIENT_32, SPREADS * own_spread(case, wanted)


def judge(found: Outcome, wanted: Outcome, limits: tuple[float, float, float, float]) -> Verdict:
    """Compare a rank's outcome with the reference."""
    loss = max(abs(a - b) / abs(b) for a, b in zip(found.losses, wanted.losses, strict=True))
    norm = max(abs(a - b) / abs(b) for a, b in zip(found.norms, wanted.norms, strict=True))
    return Verdict(
        loss, norm, worst(found.gradients, wanted.gradients), worst(found.parameters, wanted.parameters), limits
    )


def prove(pool: WorkerPool, case: Case, fault: Fault = nullcontext) -> list[Verdict]:
    """Run a case and judge every rank."""
    wanted = one_process(case)
    limits = limits_of(case, wanted)
    return [judge(found, wanted, limits) for found in pool.run(many_processes, case, fault, timeout=90.0)]


def in_float32(case: Case) -> Case:
    """The same case in float32."""
    return replace(case, dtype=torch.float32)
