"""This rank's place in a plan: which samples it holds under each layer, and whom it talks to."""

from dataclasses import dataclass, field

from meshwright.model.spec import Layer
from meshwright.plan.groups import Purpose, local_batch, purpose_axes
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Group, Placed
from meshwright.runtime.mesh import Peers, ProcessGroups


@dataclass(frozen=True)
class Place:
    """A plan with its inputs, seen from this rank."""

    inputs: Inputs
    processes: ProcessGroups
    placed: tuple[Placed, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placed", self.inputs.plan.placed)

    @property
    def group(self) -> Group:
        """The devices that work: one group, as long as the runtime has no pipeline."""
        return next(iter(self.inputs.plan.groups.values()))

    @property
    def micro_batch(self) -> int:
        """Samples of one micro-batch, over all ranks together."""
        return self.inputs.plan.recipe.global_batch // self.inputs.plan.micro_batches

    def layer(self, placed: Placed) -> Layer:
        """The model's layer."""
        return self.inputs.model.by_name[placed.layer]

    def peers(self, placed: Placed, purpose: Purpose) -> Peers | None:
        """Whom this rank works with for a purpose; none where it is alone."""
        axes = purpose_axes(placed.row)[purpose]
        return self.processes.over(self.group, axes) if axes else None

    def held(self, placed: Placed) -> tuple[int, int]:
        """(first, number) of the samples of a micro-batch that this rank holds under a layer."""
        return local_batch(self.micro_batch, self.group, placed.row, self.processes.rank)

    @property
    def unlike_the_first(self) -> str | None:
        """The first layer that divides the samples over other axes than the model's first; none where all are alike."""
        wide = {axis for axis, size in self.group.mesh.items() if size > 1}
        first = wide & {*self.placed[0].row.axes("dp")}
        return next((each.layer for each in self.placed if wide & {*each.row.axes("dp")} != first), None)

    def first_sample(self, placed: Placed) -> int:
        """The first of them."""
        return self.held(placed)[0]
