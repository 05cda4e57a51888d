"""`parallelize`: an untouched module and a plan → a model that trains over many processes as one would.

In order: cut what tensor parallelism splits; let layers hand activations over where they divide the samples
differently; draw dropout from a counter; shard what a state shards (FSDP2); note how every parameter lies.
"""

import logging
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from meshwright.errors import PlanError
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.spec import Placed
from meshwright.runtime.mesh import ProcessGroups
from meshwright.runtime.owners import check_dtypes, check_values, parameter_owners
from meshwright.runtime.parallel_model import ParallelModel
from meshwright.runtime.place import Place
from meshwright.runtime.randomness import Counter, install_dropout
from meshwright.runtime.redistribute import Move, moved
from meshwright.runtime.shard import Cut, Layout
from meshwright.runtime.split import split_layer
from meshwright.runtime.together import on_every_rank

_log = logging.getLogger(__name__)
_UNDER_A_PLAN = "_meshwright_under_a_plan"


def parallelize(module: nn.Module, inputs: Inputs) -> ParallelModel:
    """Make a module train under a plan, on the ranks of torch.distributed's default process group.

    `module` holds the whole model, equal on every rank; it is changed in place: afterwards it holds this rank's part.
    Raises PlanError, the same on every rank, where the runtime cannot run the plan, or a module is not the plan's
    model. Logs what the runtime makes nothing of.
    """
    if not dist.is_initialized():
        raise PlanError(
            "torch.distributed has no process group yet: start the program with torchrun, and call "
            "torch.distributed.init_process_group() first"
        )
    device = next((each.device for each in module.parameters() if not each.is_meta), torch.device("cpu"))
    owners = on_every_rank(partial(_checked_owners, module, inputs), device)
    place = Place(inputs, ProcessGroups(inputs.plan))
    check_values(module)
    counter = Counter(inputs.recipe.seed)
    on_every_rank(partial(_check_attention, module, place), device)
    setattr(module, _UNDER_A_PLAN, True)
    cuts = _split(module, place)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    _hand_over(module, place)
    _draw_dropout(module, place, counter)
    layouts = _layouts(place, owners, {names[id(parameter)]: cut for parameter, cut in cuts})
    return ParallelModel(module, place, layouts, _shard(module, place), counter)


def _checked_owners(module: nn.Module, inputs: Inputs) -> dict[str, str]:
    """Parameter name → layer. Raises PlanError for all that this rank alone can see."""
    problems = check_plan(inputs, "runtime")
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    if errors:
        raise PlanError("the runtime cannot run this plan:\n" + "\n".join(errors))
    if getattr(module, _UNDER_A_PLAN, False):
        raise PlanError("this module is under a plan already: build a new one for another plan")
    owners = parameter_owners(module, inputs.model)
    check_dtypes(module, inputs.recipe.precision.compute)
    for problem in problems:
        if problem.scope == "runtime" and dist.get_rank() == 0:
            _log.warning("%s", problem)
    return owners


def _check_attention(module: nn.Module, place: Place) -> None:
    """An attention that is given a mask, which the model makes once for all layers, needs one division of the
    samples.
    """
    kind = getattr(getattr(module, "config", None), "_attn_implementation", None)
    unlike = place.unlike_the_first
    if unlike is not None and kind not in (None, "sdpa"):
        raise PlanError(
            f"attention '{kind}' gets one mask for all layers, but '{unlike}' divides the samples otherwise than the "
            "first layer; build the model with attn_implementation='sdpa', or give all layers the same dp axes"
        )


def _split(module: nn.Module, place: Place) -> list[tuple[nn.Parameter, Cut]]:
    """Cut what tensor parallelism splits; a tied parameter once."""
    replaced: dict[int, tuple[nn.Parameter, nn.Parameter, Cut]] = {}
    for placed in place.placed:
        peers = place.peers(placed, "tensor")
        for found in split_layer(module, place.layer(placed), peers) if peers else ():
            old: nn.Parameter = getattr(found.module, found.attribute)
            if id(old) not in replaced:
                part = found.cut.take(old.detach(), f"{found.path}.{found.attribute}")
                replaced[id(old)] = (old, nn.Parameter(part, requires_grad=old.requires_grad), found.cut)
            setattr(found.module, found.attribute, replaced[id(old)][1])
    return [(new, cut) for _, new, cut in replaced.values()]


def _hand_over(module: nn.Module, place: Place) -> None:
    """Move what a layer takes from the one before to its own division of the samples, where the two differ."""
    for before, placed in zip(place.placed, place.placed[1:], strict=False):
        move = Move(place.group, before.row, placed.row, place.processes)
        if move.peers is not None:
            entrance = module.get_submodule(place.layer(placed).modules[0])
            entrance.register_forward_pre_hook(_mover(place, before, move), prepend=True)


def _mover(place: Place, before: Placed, move: Move) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (moved(args[0], move, place.micro_batch, place.held(before)[1]), *args[1:])

    return hook


def _draw_dropout(module: nn.Module, place: Place, counter: Counter) -> None:
    for placed in place.placed:
        for path in place.layer(placed).modules:
            for name, inner in module.get_submodule(path).named_modules(prefix=path):
                if isinstance(inner, nn.Dropout):
                    install_dropout(inner, name, counter, partial(place.first_sample, placed))


def _shard(module: nn.Module, place: Place) -> list[FSDPModule]:
    """FSDP2 over each layer's shard group. Layers that share a parameter are gathered and reduced as one."""
    sharded: list[FSDPModule] = []
    for together in _units(place):
        placed = together[-1]
        peers = place.peers(placed, "shard")
        if peers is None:
            continue
        modules = [module.get_submodule(path) for each in together for path in place.layer(each).modules]
        modules = [each for each in modules if any(True for _ in each.parameters())]
        last = placed is place.placed[-1]
        mesh = place.processes.mesh(peers, next(module.parameters()).device.type)
        fully_shard(modules, mesh=mesh, reshard_after_forward=not last)
        for each in modules[:1]:
            assert isinstance(each, FSDPModule)
            # One loss for all ranks: gradients add up. A mean's factor needs PREMUL_SUM, which gloo lacks.
            each.set_force_sum_reduction_for_comms(True)
            each.set_gradient_divide_factor(1.0)
            sharded.append(each)
    _prefetch(sharded, place.inputs.plan.execution.prefetch)
    if sharded:
        # A root of its own without parameters: FSDP2 wants one above a unit of several modules.
        fully_shard(module, mesh=mesh, ignored_params=set(module.parameters()))
    return sharded


def _prefetch(sharded: list[FSDPModule], ahead: int) -> None:
    """Gather so many units ahead, in forward and in backward. Without a list FSDP2 takes one ahead by itself."""
    for number, unit in enumerate(sharded if ahead else ()):
        unit.set_modules_to_forward_prefetch(sharded[number + 1 : number + 1 + ahead])
        unit.set_modules_to_backward_prefetch(sharded[max(number - ahead, 0) : number][::-1])


def _units(place: Place) -> list[list[Placed]]:
    """The layers, those that share a parameter together where a state shards it."""
    joined = {copy: owner for owner, copies in place.inputs.model.tied_layers for copy in copies}
    found: dict[str, list[Placed]] = {}
    for placed in place.placed:
        name = joined.get(placed.layer, placed.layer) if placed.row.state else placed.layer
        found.setdefault(name, []).append(placed)
    return list(found.values())


def _layouts(place: Place, owners: dict[str, str], cuts: dict[str, Cut]) -> dict[str, Layout]:
    by_layer = {placed.layer: placed for placed in place.placed}
    unit_of = {placed.layer: unit[0].layer for unit in _units(place) for placed in unit}
    layouts = {}
    for name, owner in owners.items():
        placed, cut = by_layer[owner], cuts.get(name)
        shard, replica = place.peers(placed, "shard"), place.peers(placed, "replica")
        slices = (cut.peers.size if cut else 1) * (shard.size if shard else 1)
        layouts[name] = Layout(name, unit_of[owner], cut, shard, replica, place.group.size // slices)
    return layouts
