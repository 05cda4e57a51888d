"""`parallelize`: an untouched module and a plan → a model that trains over many processes as one would.

In order: let go of the layers of other groups' stages; cut what tensor parallelism splits; let layers hand activations
over where they divide samples or positions differently; give each its part of the sequence; draw dropout from a
counter; recompute; shard what a state shards (FSDP2); note how every parameter lies; join the stages to a pipeline.
"""

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from meshwright.errors import PlanError
from meshwright.model.spec import Layer
from meshwright.plan.groups import tied_ranks
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.spec import Placed
from meshwright.runtime.attention import install_attention
from meshwright.runtime.batch_norm import share_statistics
from meshwright.runtime.build import Builder, device_of
from meshwright.runtime.copies import ReduceAndSlice
from meshwright.runtime.dropout import check_drawn, draw_dropout
from meshwright.runtime.experts import check_routers, spread_experts
from meshwright.runtime.failure import Standing
from meshwright.runtime.head import head_loss
from meshwright.runtime.initial import InitialValues
from meshwright.runtime.mesh import Peers, ProcessGroups
from meshwright.runtime.names import Names
from meshwright.runtime.owners import check_dtypes, check_values, parameter_owners
from meshwright.runtime.parallel_model import ParallelModel
from meshwright.runtime.pipeline import Pipeline
from meshwright.runtime.place import Place
from meshwright.runtime.precision import mixed_policy, resting_dtype
from meshwright.runtime.randomness import Counter
from meshwright.runtime.recompute import recompute_layer
from meshwright.runtime.redistribute import Move, moved
from meshwright.runtime.sequence import Sequence
from meshwright.runtime.shard import Cut, Layout
from meshwright.runtime.split import SplitParameter, norms_of_heads, split_layer
from meshwright.runtime.split_check import SplitCheck
from meshwright.runtime.stage import Gate, StageModule, Unit, keep_layers, view_of_layers
from meshwright.runtime.timetable import backward_follows_at_once
from meshwright.runtime.together import on_every_rank

_log = logging.getLogger(__name__)
_UNDER_A_PLAN = "_meshwright_under_a_plan"


def parallelize(module: nn.Module, inputs: Inputs) -> ParallelModel:
    """Make a module train under a plan, on the ranks of torch.distributed's default process group.

    `module` holds the whole model, equal on every rank, or is on the meta device: then its own initialisation runs for
    this rank's part alone, layer by layer, from the recipe's seed. It is changed in place: afterwards it holds this
    rank's part. Raises PlanError, the same on every rank, where the runtime cannot run the plan, or a module is not the
    plan's model. Logs what the runtime makes nothing of.
    """
    if not dist.is_initialized():
        raise PlanError(
            "torch.distributed has no process group yet: start the program with torchrun, and call "
            "torch.distributed.init_process_group() first"
        )
    device = device_of(module)
    on_every_rank(partial(_check, module, inputs), device)
    place = Place(inputs, ProcessGroups(inputs.plan, inputs.model.tied_layers))
    place.make_groups()
    values = on_every_rank(partial(_initial_values, module, inputs.recipe.seed), device)
    check_values(module, inputs.recipe.seed, device)
    builder = Builder(module, values, device)
    names = Names(module, inputs.model)
    counter = Counter(inputs.recipe.seed)
    sequence = Sequence(place)
    if not sequence.is_needed:
        on_every_rank(partial(_check_attention, module, place), device)
    setattr(module, _UNDER_A_PLAN, True)
    views = _views(module, place)
    split_check = SplitCheck(module, place)
    cuts = {id(parameter): cut for parameter, cut in _split(module, place)}
    on_every_rank(split_check.check, device)
    _hand_over(module, place)
    if sequence.is_needed:
        _follow_the_sequence(module, place, sequence, counter)
    draw_dropout(module, place, sequence, counter)
    _share_statistics(module, place)
    on_every_rank(partial(_recompute, module, place), device)
    loss = head_loss(module, place)
    layouts = _layouts(place, names, {name: cuts.get(id(each)) for name, each in module.named_parameters()})
    builder.lay_out(module, layouts)
    stages = {number: _stage(view, place, number, builder) for number, view in views.items()}
    standing = Standing(place)
    for placed in place.here:
        standing.follow(module, place, placed)
    needed = sequence if sequence.is_needed else None
    pipeline = Pipeline(place, stages, counter, needed, loss=loss, standing=standing)
    return ParallelModel(module, place, layouts, pipeline, names)


def _check(module: nn.Module, inputs: Inputs) -> None:
    """Raises PlanError for all that this rank alone can see."""
    problems = check_plan(inputs, "runtime")
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    if errors:
        raise PlanError("the runtime cannot run this plan:\n" + "\n".join(errors))
    if getattr(module, _UNDER_A_PLAN, False):
        raise PlanError("this module is under a plan already: build a new one for another plan")
    parameter_owners(module, inputs.model)
    check_dtypes(module, resting_dtype(inputs.recipe.precision))
    check_routers(module)
    check_drawn(module)
    for problem in problems:
        if problem.scope == "runtime" and dist.get_rank() == 0:
            _log.warning("%s", problem)


def _initial_values(module: nn.Module, seed: int) -> InitialValues | None:
    """What a module on meta starts from; none where it has its values."""
    return InitialValues(module, seed) if any(each.is_meta for each in module.parameters()) else None


def _check_attention(module: nn.Module, place: Place) -> None:
    """An attention that is given a mask, which the model makes once for all layers, needs one division of the
    samples.
    """
    kind = getattr(getattr(module, "config", None), "_attn_implementation", None)
    core = next((placed.layer for placed in place.placed if placed.row.singles_out_attention), None)
    if core is not None and kind != "sdpa":
        raise PlanError(
            f"'{core}' recomputes or keeps its core attention, which attention '{kind}' does not have as one function; "
            "build the model with attn_implementation='sdpa', or write 'recompute: full'"
        )
    unlike = place.unlike_the_first
    attends = any(place.inputs.model.attentions(placed.layer) for placed in place.placed)
    if unlike is not None and attends and kind not in (None, "sdpa"):
        raise PlanError(
            f"attention '{kind}' gets one mask for all layers, but '{unlike[0]}' divides the samples otherwise than "
            f"'{unlike[1]}'; build the model with attn_implementation='sdpa', or give all layers the same dp axes"
        )


def _split(module: nn.Module, place: Place) -> list[tuple[nn.Parameter, Cut]]:
    """Cut what tensor parallelism splits and what experts spread; a tied parameter once."""
    replaced: dict[int, tuple[nn.Parameter, nn.Parameter, Cut]] = {}
    for placed in place.here:
        for found in _to_cut(module, place, placed):
            old: nn.Parameter = getattr(found.module, found.attribute)
            if id(old) not in replaced:
                part = found.cut.take(old.detach(), f"{found.path}.{found.attribute}")
                replaced[id(old)] = (old, nn.Parameter(part, requires_grad=old.requires_grad), found.cut)
            setattr(found.module, found.attribute, replaced[id(old)][1])
    for inner in module.modules():  # the same parameter under other names
        for attribute, parameter in inner._parameters.items():
            if id(parameter) in replaced:
                setattr(inner, attribute, replaced[id(parameter)][1])
    return [(new, cut) for _, new, cut in replaced.values()]


def _to_cut(module: nn.Module, place: Place, placed: Placed) -> Iterator[SplitParameter]:
    """What is to be cut of a layer."""
    ranks = place.tensor_ranks(placed)
    if ranks is not None:
        yield from split_layer(module, place.layer(placed), ranks)
    for path, own in place.apart(placed).items():
        sharing = place.sharing_positions(placed, own)
        yield from spread_experts(module.get_submodule(path), path, place.peers(own, "expert"), sharing)


def _hand_over(module: nn.Module, place: Place) -> None:
    """Move what a layer takes from the one before to its own division of the samples, where the two differ. Between
    stages the pipeline does it. Every rank asks for every move, so that all make the same groups.
    """
    for before, placed in pairwise(place.placed):
        if before.group != placed.group:
            continue
        move = Move(place.groups[placed.group], before.row, placed.row, place.processes)
        if move.steps and before.stage == placed.stage and placed.group == place.name:
            entrance = module.get_submodule(place.layer(placed).modules[0])
            entrance.register_forward_pre_hook(partial(_move_in, move), prepend=True)
    for placed in place.here if place.unlike_the_first else ():
        module.get_submodule(place.layer(placed).modules[0]).register_forward_pre_hook(_one_mask, with_kwargs=True)


def _move_in(move: Move, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (moved(args[0], move), *args[1:])


def _one_mask(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A mask [samples, heads, queries, keys] that a model makes by itself (of windows) is the same for all samples: one
    row of it serves, however many samples a layer holds. Batches with masks of their own are refused.
    """
    mask = kwargs.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.dim() == 4:
        kwargs = kwargs | {"attention_mask": mask[:1]}
    return args, kwargs


def _follow_the_sequence(module: nn.Module, place: Place, sequence: Sequence, counter: Counter) -> None:
    """Give each layer its part of the sequence."""
    install_attention(module, place, sequence, counter)
    for placed in place.here:
        sequence.install(module, placed)


def _share_statistics(module: nn.Module, place: Place) -> None:
    for placed in place.here:
        peers = place.batch_ranks(placed) if place.inputs.model.batch_statistics else None
        if peers is not None:
            for path in place.layer(placed).modules:
                share_statistics(module.get_submodule(path), peers)


def _views(module: nn.Module, place: Place) -> dict[int, nn.Module]:
    """What each stage of this rank runs. The module keeps this rank's layers alone; of several stages each gets a view
    of it.
    """
    model = place.inputs.model
    keep_layers(module, model, {placed.layer for placed in place.here})
    if len(place.stages) == 1:
        return {place.stages[0]: module}
    kept = {number: {placed.layer for placed in place.of_stage(number)} for number in place.stages}
    return {number: view_of_layers(module, model, layers) for number, layers in kept.items()}


def _stage(module: nn.Module, place: Place, number: int, builder: Builder) -> StageModule:
    units = _shard(module, place, place.of_stage(number), builder)

    def entrance(stage: int) -> Gate:
        first, before = place.layer(place.of_stage(stage)[0]), place.layer(place.of_stage(stage - 1)[-1])
        if first.reads:
            return Gate(module.get_submodule(first.modules[0]))
        return Gate(module.get_submodule(before.modules[-1]), puts_out=True)  # for those that look at it

    last = len(place.inputs.plan.stages) - 1
    return StageModule(
        module, units, entrance(number) if number else None, entrance(number + 1) if number < last else None
    )


def _recompute(module: nn.Module, place: Place) -> None:
    for placed in place.here:
        recompute_layer(module, place.layer(placed), placed.row.recompute)


def _shard(module: nn.Module, place: Place, layers: tuple[Placed, ...], builder: Builder) -> list[Unit]:
    """FSDP2 over each layer's shard group. Layers that share a parameter are gathered and reduced as one, experts with
    a row of their own by themselves. What is on meta gets its values just before it is sharded.
    """
    units: list[Unit] = []
    for together in _units(place, layers, mixed=place.inputs.recipe.precision.mixed):
        placed = together[-1]
        modules = [module.get_submodule(path) for each in together for path in place.layer(each).modules]
        builder.fill(modules)
        own = {path: each for layer in together for path, each in place.apart(layer).items()}
        apart = [(module.get_submodule(path), each) for path, each in own.items()]
        inner = [_unit([experts], place, each, builder, ()) for experts, each in apart]
        others = [parameter for experts, _ in apart for parameter in experts.parameters()]
        names = [pair for each in together for pair in _named_alone(module, place.layer(each))]
        modules = [each for each in modules if any(True for _ in each.parameters())]
        modules = [each for each in modules if all(each is not one for one, _ in names)]
        units += [unit for unit in (_unit(modules, place, placed, builder, others), *inner) if unit is not None]
        for one, same in names:
            one.weight = same.weight
    builder.fill([module])  # what is no layer's: rotary tables, places of positions
    _prefetch([unit.module for unit in units], place.inputs.plan.execution.prefetch)
    if units:
        # A root of its own without parameters: FSDP2 wants one above a unit of several modules.
        mesh = next(each.device_mesh for each in module.parameters() if isinstance(each, DTensor))
        fully_shard(module, mesh=mesh, ignored_params=set(module.parameters()))
    return units


def _named_alone(module: nn.Module, layer: Layer) -> list[tuple[nn.Module, nn.Module]]:
    """Embeddings of a layer that only name what its next module looks up (T5's `shared`), each with that module: FSDP2
    would wait until both have run.
    """
    held = [module.get_submodule(path) for path in layer.modules]
    tables = [each for each in held if isinstance(each, nn.Embedding)]
    return [(one, same) for one, same in pairwise(tables) if one is not same and one.weight is same.weight]


def _unit(
    modules: list[nn.Module], place: Place, placed: Placed, builder: Builder, others: Iterable[nn.Parameter]
) -> Unit | None:
    """What FSDP2 gathers and reduces as one, without the parameters of `others`; none where nothing is sharded or
    cast.
    """
    precision, peers = place.inputs.recipe.precision, place.peers(placed, "shard")
    if peers is None and precision.mixed:
        peers = place.processes.alone()
    if peers is None:
        return None
    stays = placed is place.placed[-1] and backward_follows_at_once(place.inputs.plan)
    mesh = place.processes.mesh(peers, builder.device.type)
    again = placed.row.state == "zero3" and not stays
    policy = mixed_policy(precision)
    fully_shard(modules, mesh=mesh, reshard_after_forward=again, ignored_params=set(others), mp_policy=policy)
    sharded = modules[0]
    assert isinstance(sharded, FSDPModule)
    # One loss for all ranks: gradients add up. A mean's factor needs PREMUL_SUM, which gloo lacks.
    sharded.set_force_sum_reduction_for_comms(True)
    sharded.set_gradient_divide_factor(1.0)
    if placed.row.axes("copy"):
        sharded.set_custom_reduce_scatter(ReduceAndSlice(peers, place.reducing(placed)))
    return Unit(sharded, placed.row.state)


def _prefetch(sharded: list[FSDPModule], ahead: int) -> None:
    """Gather so many units ahead, in forward and in backward. Without a list FSDP2 takes one ahead by itself."""
    for number, unit in enumerate(sharded if ahead else ()):
        unit.set_modules_to_forward_prefetch(sharded[number + 1 : number + 1 + ahead])
        before = sharded[max(number - ahead, 0) : number][::-1]
        # Of an empty list FSDP2 makes the last unit of another micro-batch, which nobody wants yet.
        unit.set_modules_to_backward_prefetch(before or [unit])


def _units(place: Place, layers: tuple[Placed, ...], *, mixed: bool = False) -> list[list[Placed]]:
    """The layers of a stage, those that share a parameter together where a state shards it, or it is cast."""
    here = {placed.layer for placed in layers}
    tied = [[each for each in (owner, *copies) if each in here] for owner, copies in place.inputs.model.tied_layers]
    joined = {layer: held[0] for held in tied for layer in held}
    found: dict[str, list[Placed]] = {}
    for placed in layers:
        name = joined.get(placed.layer, placed.layer) if placed.row.state or mixed else placed.layer
        found.setdefault(name, []).append(placed)
    return list(found.values())


def _layouts(place: Place, names: Names, cuts: dict[str, Cut | None]) -> dict[str, Layout]:
    """How each parameter of this rank lies, by the name that it has here."""
    by_layer = {placed.layer: placed for placed in place.placed}
    units = (unit for number in place.stages for unit in _units(place, place.of_stage(number)))
    inside = {path for placed in place.placed for path in norms_of_heads(place.layer(placed))}
    unit_of = {placed.layer: unit[0].layer for unit in units for placed in unit}
    layouts = {}
    for name, cut in cuts.items():
        own = names.own[name]
        holders = [by_layer[layer] for layer in names.layers[own]]
        placed = next(each for each in holders if each.group == place.name)
        unit = unit_of[placed.layer]
        for path, experts in place.apart(placed).items():
            if own.startswith(f"{path}."):
                unit, placed = path, experts
        shard, replica = place.peers(placed, "shard"), place.peers(placed, "replica")
        slices = (cut.slices if cut else 1) * (shard.size if shard else 1)
        copies = place.group.size // slices * len({each.group for each in holders})
        partial = place.scattered(placed) if cut is None else None
        if name.rpartition(".")[0] in inside:
            partial = place.peers(placed, "tensor")
        copied = place.sharing_heads(placed) if cut is not None and cut.copies > 1 else None
        layouts[name] = Layout(own, unit, cut, shard, replica, copies, _tied(place, holders), partial, copied)
    return layouts


def _tied(place: Place, holders: list[Placed]) -> Peers | None:
    """The ranks of other groups that hold a copy of the same slice."""
    if len({placed.group for placed in holders}) == 1:
        return None
    return place.processes.among(tied_ranks(place.inputs.plan, holders))
