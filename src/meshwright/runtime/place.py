"""This rank's place in a plan: its stages, which samples it holds under each layer, and whom it talks to."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from meshwright.model.operators import Experts
from meshwright.model.spec import Layer
from meshwright.plan.divisions import by_tokens
from meshwright.plan.groups import Purpose, axis_groups, local_batch, purpose_axes
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Group, Placed
from meshwright.runtime.mesh import Peers, ProcessGroups
from meshwright.runtime.tensor import TensorRanks


@dataclass(frozen=True)
class Place:
    """A plan with its inputs, seen from this rank."""

    inputs: Inputs
    processes: ProcessGroups
    placed: tuple[Placed, ...] = field(init=False)
    """Every layer of the plan."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "placed", self.inputs.plan.placed)

    @property
    def groups(self) -> dict[str, Group]:
        """The plan's groups of devices."""
        return self.inputs.plan.groups

    @cached_property
    def name(self) -> str:
        """The name of the group that this rank is in."""
        return next(name for name, group in self.groups.items() if self.processes.rank in group.devices)

    @property
    def group(self) -> Group:
        """The devices that this rank works with."""
        return self.groups[self.name]

    @cached_property
    def stages(self) -> tuple[int, ...]:
        """The stages of its group, in forward order."""
        return tuple(number for number, stage in enumerate(self.inputs.plan.stages) if stage.on == self.name)

    @cached_property
    def here(self) -> tuple[Placed, ...]:
        """The layers that this rank holds a part of."""
        return tuple(placed for placed in self.placed if placed.group == self.name)

    def of_stage(self, number: int) -> tuple[Placed, ...]:
        """The layers of a stage."""
        return self._by_stage[number]

    @cached_property
    def _by_stage(self) -> dict[int, tuple[Placed, ...]]:
        numbers = range(len(self.inputs.plan.stages))
        return {number: tuple(each for each in self.placed if each.stage == number) for number in numbers}

    @property
    def micro_batch(self) -> int:
        """Samples of one micro-batch, over all ranks together."""
        return self.inputs.plan.recipe.global_batch // self.inputs.plan.micro_batches

    def layer(self, placed: Placed) -> Layer:
        """The model's layer."""
        return self.inputs.model.by_name[placed.layer]

    def apart(self, placed: Placed) -> dict[str, Placed]:
        """Of routed experts that have a row of their own: the path of their module → the layer as that row has it."""
        layer, rows = self.layer(placed), placed.parts
        return {
            layer.module_path(operator.path): placed._replace(row=rows[part.name], parts={})
            for part in layer.stack.parts
            for operator in part.operators
            if part.name in rows and isinstance(operator, Experts)
        }

    def sharing_positions(self, placed: Placed, experts: Placed) -> Peers | None:
        """The ranks that hold the same positions under a layer, and take a part of them each to its experts."""
        held, wanted = by_tokens(placed.row, experts.row, self.groups[placed.group].mesh)
        return self._over(placed, (axis for axis in wanted.positions if axis not in held.positions))

    @cached_property
    def _known(self) -> dict[tuple[str, tuple[str, ...]], Peers | None]:
        return {}

    def _over(self, placed: Placed, axes: Iterable[str]) -> Peers | None:
        """Whom this rank works with over some axes of a layer's group, found once: layers ask in every forward."""
        key = placed.group, tuple(axes)
        if key not in self._known:
            self._known[key] = self.processes.over(self.groups[placed.group], key[1])
        return self._known[key]

    def peers(self, placed: Placed, purpose: Purpose) -> Peers | None:
        """Whom this rank works with for a purpose; none where it is alone, or not in the layer's group."""
        axes = purpose_axes(placed.row)[purpose]
        return self._over(placed, axes) if axes else None

    def reducing(self, placed: Placed) -> Peers | None:
        """Of a layer's shard group: the ranks whose gradients add up. Those of `copy` axes are equal."""
        row = placed.row
        return self._over(placed, (axis for axis in row.state_axes() if row.roles[axis].split != "copy"))

    def sharing_heads(self, placed: Placed) -> Peers | None:
        """The ranks that hold the same KV heads, where these are fewer than tensor ranks."""
        group, axes = self.groups[placed.group], purpose_axes(placed.row)["tensor"]
        lists = axis_groups(group, axes)
        heads = [each.kv_heads for each in self.inputs.model.attentions(placed.layer)]
        copies = max([1, *(len(lists[0]) // count for count in heads)])
        return self.processes.among(
            tuple(ranks[at : at + copies] for ranks in lists for at in range(0, len(ranks), copies))
        )

    def tensor_ranks(self, placed: Placed) -> TensorRanks | None:
        """Over whom a layer's matrices are cut; none where they are whole, or this rank is not in the layer's group."""
        every, plain = self.peers(placed, "tensor"), self._over(placed, placed.row.axes("tp"))
        return TensorRanks(every, plain, self.scattered(placed)) if every else None

    def scattered(self, placed: Placed) -> Peers | None:
        """The ranks of `tp+sp`."""
        return self._over(placed, placed.row.axes("tp+sp"))

    def batch_ranks(self, placed: Placed) -> Peers | None:
        """The ranks that hold other samples of a micro-batch under a layer."""
        return self._over(placed, placed.row.axes("dp"))

    def make_groups(self) -> None:
        """Ask for the process groups that `process_groups` does not list, those of other groups' layers too: every rank
        makes every group.
        """
        for placed in self.placed:
            self.tensor_ranks(placed)
            self.scattered(placed)
            self.sharing_heads(placed)
            self.reducing(placed)
            for experts in self.apart(placed).values():
                self.sharing_positions(placed, experts)

    def held(self, placed: Placed) -> tuple[int, int]:
        """(first, number) of the samples of a micro-batch that this rank holds under a layer."""
        return local_batch(self.micro_batch, self.groups[placed.group], placed.row, self.processes.rank)

    @property
    def unlike_the_first(self) -> tuple[str, str] | None:
        """A layer that divides the samples over other axes than the first of its stage, which is named too; none where
        all are alike.
        """
        for layers in self._by_stage.values():
            wide = {axis for axis, size in self.groups[layers[0].group].mesh.items() if size > 1}
            first = wide & {*layers[0].row.axes("dp")}
            for each in layers:
                if wide & {*each.row.axes("dp")} != first:
                    return each.layer, layers[0].layer
        return None

    def first_sample(self, placed: Placed) -> int:
        """The first of them."""
        return self.held(placed)[0]
