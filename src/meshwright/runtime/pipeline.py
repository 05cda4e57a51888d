"""One step of a pipeline on this rank: the actions of its schedule, and the messages between groups."""

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from meshwright.plan.orders import Action, ActionKind
from meshwright.plan.spec import Placed
from meshwright.runtime.batch import StepBatch
from meshwright.runtime.border import Arriving, Border, Posted
from meshwright.runtime.failure import Standing
from meshwright.runtime.head import WholeLoss
from meshwright.runtime.owners import DTYPES
from meshwright.runtime.place import Place
from meshwright.runtime.precision import kept
from meshwright.runtime.randomness import Counter
from meshwright.runtime.sequence import Sequence
from meshwright.runtime.stage import StageModule
from meshwright.runtime.timetable import Edge, Post, Step, Way, edges_of, timetable
from meshwright.runtime.torch_private import WeightsHalf, backward_for_input, backward_for_weights

Key = tuple[Edge, Way, int]
"""What travels: over which edge, which way, of which micro-batch."""
_GRADIENTS_UNDER_WAY = 2
"""Of each edge, so that memory does not grow with the number of micro-batches."""


class Pipeline:
    """The stages of this rank with their steps. One stage on one group is a pipeline too."""

    def __init__(
        self,
        place: Place,
        stages: Mapping[int, StageModule],
        counter: Counter,
        sequence: Sequence | None,
        *,
        loss: WholeLoss | None,
        standing: Standing,
    ) -> None:
        self.place, self.stages, self.counter, self.sequence, self.loss = place, stages, counter, sequence, loss
        self.standing = standing
        self.steps = timetable(place.inputs.plan)[place.name]
        self.says = [_said(step) for step in self.steps]
        self.borders = {
            edge: Border(place, place.of_stage(edge.source)[-1], place.of_stage(edge.target)[0])
            for edge in edges_of(place.inputs.plan)
        }
        self.into = {edge.target: edge for edge in self.borders}
        self.out_of = {edge.source: edge for edge in self.borders}
        last = {step.stage: number for number, step in enumerate(self.steps) if isinstance(step, Action)}
        self._ends = set(last.values())

    def run(self, batch: StepBatch) -> Tensor:
        """The summed loss of this rank's samples over the batch's tokens, zero where it does not hold the last stage;
        gradients are added to those of the parameters.
        """
        under_way = _UnderWay(self, batch)
        for number, (step, said) in enumerate(zip(self.steps, self.says, strict=True)):
            under_way.do(step, said, last=number in self._ends)
        under_way.finish()
        return under_way.loss

    @torch.no_grad()
    def evaluate(self, batch: StepBatch) -> Tensor:
        """The same loss without gradients: the forwards of the schedule, with their messages, in its order."""
        under_way = _UnderWay(self, batch)
        for step, said in zip(self.steps, self.says, strict=True):
            if (step.way if isinstance(step, Post) else step.kind) == "forward":
                under_way.do(step, said, last=False)
        under_way.finish()
        for stage in self.stages.values():
            stage.reshard()
        return under_way.loss

    @cached_property
    def like(self) -> Tensor:
        """Empty, of the kind that activations are."""
        held = next(parameter for stage in self.stages.values() for parameter in stage.parameters())
        return torch.empty(0, dtype=DTYPES[self.place.inputs.recipe.precision.compute], device=held.device)


def _said(step: Step) -> str:
    return str(step) if isinstance(step, Post) else f"{step.kind} of micro-batch {step.micro_batch}"


class _UnderWay:
    """What is alive during one step."""

    def __init__(self, pipeline: Pipeline, batch: StepBatch) -> None:
        self._pipeline, self._place, self._batch = pipeline, pipeline.place, batch
        self._like = pipeline.like
        self.loss = torch.zeros((), dtype=torch.float64, device=self._like.device)
        self._live: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        self._leaving: dict[Key, Tensor] = {}
        self._arriving: dict[Key, Arriving] = {}
        self._sent: dict[Key, Posted] = {}
        self._halves: dict[tuple[int, int], WeightsHalf] = {}
        self._actions: dict[ActionKind, Callable[[int, int], None]] = {
            "forward": self._forward,
            "backward": self._backward,
            "input": self._backward_for_input,
            "weight": self._backward_for_weights,
        }

    def do(self, step: Step, said: str, *, last: bool) -> None:
        """Take one step, which is told as `said`. `last` tells a stage's last action."""
        if isinstance(step, Post):
            with self._pipeline.standing.at(said, step.stage):
                self._post(step)
            return
        place, stage = self._place, self._pipeline.stages[step.stage]
        self._pipeline.counter.first_sample = step.micro_batch * place.micro_batch  # in backward: of what is recomputed
        if self._pipeline.sequence is not None:
            self._pipeline.sequence.enter(self._batch.inputs, self._pipeline.counter.first_sample, self._like.device)
        stage.sync(last=last, each=place.inputs.plan.execution.sync == "each")
        with self._pipeline.standing.at(said, step.stage), kept(self._like.dtype):
            self._actions[step.kind](step.stage, step.micro_batch)

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        with self._pipeline.standing.at("waiting until all messages have left"):
            for key in list(self._sent):
                self._left(key)

    def _left(self, key: Key) -> None:
        """Wait until a message has left, and let go of its memory."""
        for work, _ in self._sent.pop(key, []):
            work.wait()

    def _forward(self, stage: int, number: int) -> None:
        placed = self._place.of_stage(stage)
        inputs = self._inputs(placed, number)
        received = None
        if stage in self._pipeline.into:
            received = self._arrived((self._pipeline.into[stage], "forward", number)).requires_grad_()
        loss = self._pipeline.loss if stage not in self._pipeline.out_of else None
        if loss is not None:
            loss.targets = self._targets(placed[-1], number)
        output = self._pipeline.stages[stage].forward(inputs, received)
        if loss is None:
            self._pass_on((self._pipeline.out_of[stage], "forward", number), output.detach())
        else:
            output = loss(output) / self._batch.tokens
            self.loss += output.detach()
        if torch.is_grad_enabled():
            self._live[stage, number] = received, output

    def _backward(self, stage: int, number: int) -> None:
        received, output = self._live.pop((stage, number))
        torch.autograd.backward(output, self._gradient(stage, number))
        if received is not None:
            assert received.grad is not None
            self._pass_on((self._pipeline.into[stage], "backward", number), received.grad)

    def _backward_for_input(self, stage: int, number: int) -> None:
        """Of the first stage nothing, since nobody waits: all of its backward is its weights' half, as in torch."""
        if stage not in self._pipeline.into:
            return
        received, output = self._live.pop((stage, number))
        assert received is not None
        weights = self._pipeline.stages[stage].parameters()
        gradient, half = backward_for_input(output, self._gradient(stage, number), received, weights)
        self._halves[stage, number] = half
        self._pass_on((self._pipeline.into[stage], "backward", number), gradient)

    def _backward_for_weights(self, stage: int, number: int) -> None:
        if stage in self._pipeline.into:
            backward_for_weights(self._pipeline.stages[stage].parameters(), self._halves.pop((stage, number)))
        else:
            self._backward(stage, number)

    def _gradient(self, stage: int, number: int) -> Tensor | None:
        """Of what the stage put out; none of a loss."""
        if stage not in self._pipeline.out_of:
            return None
        return self._arrived((self._pipeline.out_of[stage], "backward", number))

    def _inputs(self, placed: tuple[Placed, ...], number: int) -> dict[str, Tensor]:
        """What the module's forward is called with."""
        if self._pipeline.sequence is not None:
            return self._pipeline.sequence.inputs(placed[-1])
        return self._batch.samples(*self._share(placed[0], number), self._like)

    def _targets(self, placed: Placed, number: int) -> Tensor:
        """Of the values that the last layer puts out here."""
        first, count = self._share(placed, number)
        targets, sequence = self._batch.targets[first : first + count].to(self._like.device), self._pipeline.sequence
        return targets if sequence is None else targets[:, sequence.at_matrices(placed)]

    def _share(self, placed: Placed, number: int) -> tuple[int, int]:
        """(first, number) of this rank's samples of the global batch, under a layer, in a micro-batch."""
        first, count = self._place.held(placed)
        return number * self._place.micro_batch + first, count

    def _pass_on(self, key: Key, tensor: Tensor) -> None:
        """To the stage that wants it: at once on the same group, with the next message to another."""
        edge, way, _ = key
        border = self._pipeline.borders[edge]
        if border.move is not None:
            self._arriving[key] = Arriving(border.across(tensor, way), [], [])
        else:
            self._leaving[key] = tensor

    def _post(self, post: Post) -> None:
        key, border = (post.edge, post.way, post.micro_batch), self._pipeline.borders[post.edge]
        length = self._batch.lengths[self._place.layer(border.source).stack.stream]
        if post.does == "send":
            self._sent[key] = border.send(self._leaving.pop(key), post.way, length)
            # Every message before this one can leave without anything that is done after it (see `timetable`).
            self._left((post.edge, "backward", post.micro_batch - _GRADIENTS_UNDER_WAY))
        else:
            self._arriving[key] = border.receive(post.way, length, self._like)

    def _arrived(self, key: Key) -> Tensor:
        tensor = self._arriving.pop(key).wait()
        edge, _, number = key
        self._left((edge, "forward", number))  # it has: what came is its gradient, or the message itself
        return tensor
