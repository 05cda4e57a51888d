"""A program run on four ranks: that it is right, and what it moved; the plan of the same layout, and what that says."""

import copy
import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from meshwright.cost.volumes import Collective, step_collectives
from meshwright.model.spec import ModelSpec
from meshwright.plan.groups import axis_groups
from meshwright.plan.rules import Inputs
from tests.cost.build import inputs, llama
from tests.reference import model as small
from tests.reference.counting import CountMoves, Move
from tests.reference.model import Job, Model
from tests.reference.parameters import CLIP, Kept, descend, square

RANKS = 4

Counts = Counter[Move]
Fault = Callable[[], AbstractContextManager[Any]]
"""Something planted in the workers alone."""


@dataclass(frozen=True)
class Case:
    """A program, what it is asked to do, and the roles of the same layout in a plan."""

    program: str
    roles: dict[str, str]
    job: Job = field(default_factory=Job)
    mesh: dict[str, int] = field(default_factory=lambda: {"all": RANKS})
    stages: int = 1
    experts: dict[str, str] = field(default_factory=dict)
    """Roles of the routed experts, where the model has any."""
    execution: dict[str, str] = field(default_factory=dict)
    schedule: str = ""
    """Of the plan; otherwise that which the job follows."""


@dataclass(frozen=True)
class Outcome:
    """How far a rank is from the one process after a step, and what it moved."""

    loss: float | None
    """As a share; none where the rank does not know the loss."""
    kept: float
    """What differs most in what it keeps, as a share of the largest change of that tensor."""
    counts: Counts


def run(case: Case, fault: Fault = nullcontext) -> Outcome:
    """On every rank: one step of the program, beside the same step of one process."""
    program: Any = importlib.import_module(f"tests.reference.{case.program}")
    rank = dist.get_rank()
    model = Model(case.job)
    kept: Kept = program.share(model, rank, RANKS)
    before = {name: parameter.detach().clone() for name, parameter in kept.items()}
    with _groups_closed(), fault(), CountMoves() as counting:
        loss = program.step(model, kept, case.job)
    wanted_loss, after = one_process(case.job)
    wanted: Kept = program.share(copy.deepcopy(after), rank, RANKS)
    differences = [_relative(kept[name], parameter, before[name]) for name, parameter in wanted.items()]
    loss_difference = None if loss is None else abs(float(loss) - wanted_loss) / wanted_loss
    return Outcome(loss_difference, max(differences), counting.counts)


@cache
def one_process(job: Job) -> tuple[float, Model]:
    """The step that every program must equal: its loss, and the model after it."""
    model, total = Model(job), 0.0
    for tokens, labels in job.batches():
        loss = model(tokens, labels)
        loss.backward()
        total += float(loss.detach())
    squares = square(model.parameters(), 1)
    assert squares.sqrt() > CLIP, "clipping must count"
    descend(model.parameters(), squares if job.clipped else None)
    return total, model


def _relative(found: torch.Tensor, wanted: torch.Tensor, before: torch.Tensor) -> float:
    changed = (wanted - before).detach().abs().max()
    return float((found - wanted).detach().abs().max() / changed)


@contextmanager
def _groups_closed() -> Iterator[None]:
    """Close what process groups the program makes, when all ranks are done."""
    made: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        made.append(new_group(*args, **kwargs))
        return made[-1]

    new_group = dist.new_group
    with mock.patch.object(dist, "new_group", make):
        yield
    dist.barrier()
    for group in made:
        if isinstance(group, dist.ProcessGroup):
            dist.destroy_process_group(group)


def predicted(case: Case, rank: int) -> Counts:
    """What `cost.volumes` says that a rank takes part in; of messages, those that it sends."""
    given = plan_of(case)
    counts: Counts = Counter()
    for one in step_collectives(given):
        ranks = _process_group(given, one, rank)
        if ranks and one.bytes:
            assert one.bytes == int(one.bytes)
            counts[Move(one.purpose, one.kind, ranks, int(one.bytes), one.when)] += one.count
    return counts


def _process_group(given: Inputs, one: Collective, rank: int) -> tuple[int, ...]:
    """The rank's process group for a collective; none where it takes no part."""
    if one.purpose == "pipeline":
        return one.ranks if one.ranks[one.when == "backward"] == rank else ()
    if not one.axes:
        return one.ranks if rank in one.ranks else ()
    (name,) = one.groups
    return next((ranks for ranks in axis_groups(given.plan.groups[name], one.axes) if rank in ranks), ())


_NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16"}


def plan_of(case: Case) -> Inputs:
    """The case's layout as a plan, with its model and recipe."""
    job = case.job
    precision = {"compute": _NAMES[job.compute], "reduce": _NAMES[job.sums], "master": None}
    usual = [{"span": span} for span in ("embed", "decoder.0-3", "head")]
    routed = {"span": "decoder.0-3", "part": "experts", "roles": case.experts}
    return inputs(
        model_of(job),
        f"cpu:{RANKS}",
        case.mesh,
        case.roles,
        pp=case.stages,
        rows=[*usual, routed] if job.sparse else None,
        batch=small.SAMPLES,
        sequence=small.LENGTH,
        micro_batches=job.micro_batches,
        schedule=case.schedule or ("gpipe" if job.forwards_first else "1f1b"),
        execution=case.execution,
        recipe={"precision": precision, "clip_norm": CLIP if job.clipped else None},
    )


def model_of(job: Job) -> ModelSpec:
    """The model of the programs, as a plan knows it."""
    spec = llama(
        hidden_size=small.HIDDEN,
        intermediate_size=small.FFN,
        num_attention_heads=small.HEADS,
        num_key_value_heads=small.KV_HEADS,
        num_hidden_layers=small.LAYERS,
        vocab_size=small.VOCABULARY,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=job.tied,
    )
    return _routed(spec) if job.sparse else spec


def _routed(spec: ModelSpec) -> ModelSpec:
    data = spec.as_data()
    stack = next(stack for stack in data["stacks"] if "." in stack["span"])
    norm, *_, add = stack["parts"][1]["operators"]
    numbers = {"hidden": small.HIDDEN, "top_k": small.CHOSEN}
    router = {"op": "router", "experts": small.EXPERTS} | numbers
    experts = {"op": "experts", "count": small.EXPERTS, "ffn": small.FFN} | numbers
    stack["parts"][1] = {"name": "experts", "operators": [norm, router, experts, add]}
    return ModelSpec.from_data({"meshwright_model": 1} | data)
