"""What a step's batch is to a model: what its forward takes, what it should put out, and how long its streams are."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from meshwright.errors import PlanError
from meshwright.runtime.loss import IGNORED, TARGETS, count_tokens
from meshwright.runtime.place import Place
from meshwright.runtime.sequence import Sequence

DECODER_INPUTS = "decoder_input_ids"


class StepBatch(NamedTuple):
    """A global batch, the same on every rank."""

    inputs: dict[str, Tensor]
    """What the module's forward takes, with a row for each sample."""
    targets: Tensor
    """Of each value that it puts out; -100 where none counts."""
    tokens: int
    """How many count, one at least."""
    lengths: dict[str, int]
    """Positions of each stream."""

    def samples(self, first: int, count: int, like: Tensor) -> dict[str, Tensor]:
        """The inputs of some samples, on a parameter's device and, where they are no whole numbers, in its dtype."""
        taken = {name: tensor[first : first + count] for name, tensor in self.inputs.items()}
        return {
            name: each.to(like.device, like.dtype if each.is_floating_point() else None) for name, each in taken.items()
        }


class Feed:
    """Makes a model's batches of what its user gives."""

    def __init__(self, module: nn.Module, place: Place, sequence: Sequence | None) -> None:
        self.place, self._sequence = place, sequence
        self.model, self.kind = place.inputs.model, place.inputs.recipe.loss.kind
        self._config: Any = getattr(module, "config", None)
        self.main = getattr(module, "main_input_name", "input_ids" if self.model.vocabulary else "pixel_values")
        """What the module takes first: of transformers' its `main_input_name`."""

    def prepare(self, batch: Mapping[str, Tensor]) -> StepBatch:
        """Check a batch, and make of it what the runtime wants. Raises PlanError for one that does not fit the plan."""
        for name in (self.main, "labels"):
            if name not in batch:
                raise PlanError(f"the batch has no '{name}'; it has: {', '.join(sorted(batch)) or 'nothing'}")
        wanted = self.place.inputs.plan.recipe.global_batch
        for name, tensor in batch.items():
            if tensor.shape[0] != wanted:
                raise PlanError(f"batch['{name}'] has {tensor.shape[0]} samples; the plan's global batch is {wanted}")
        inputs = {self.main: batch[self.main]} | {name: each for name, each in batch.items() if name != "labels"}
        if self.kind == "seq2seq" and DECODER_INPUTS not in inputs:
            inputs[DECODER_INPUTS] = shifted_right(batch["labels"], self._config)
        self._check_others([name for name in inputs if name != self.main], batch)
        self._check_values(inputs, batch["labels"])
        targets = TARGETS[self.kind](batch["labels"])
        return StepBatch(inputs, targets, max(count_tokens(targets), 1), self._lengths(inputs, targets))

    def _lengths(self, inputs: Mapping[str, Tensor], targets: Tensor) -> dict[str, int]:
        """A stream's own, where the model fixes it; that of the targets where these are its positions; else that of the
        main input.
        """
        last = self.model.stacks[-1].stream if targets.dim() > 1 else None
        return {
            name: stream.length or (targets if name == last else inputs[self.main]).shape[1]
            for name, stream in self.model.streams.items()
        }

    def _check_others(self, others: list[str], batch: Mapping[str, Tensor]) -> None:
        """What else the module takes, and the length, which every layer's part must fit."""
        unlike, sequence = self.place.unlike_the_first, self._sequence
        unknown = [name for name in others if name != "attention_mask"]
        if sequence is not None and unknown:
            raise PlanError(f"batch['{unknown[0]}'] cannot be divided by positions; leave it out")
        if sequence is not None and batch[self.main].shape[1] % sequence.unit:
            length = batch[self.main].shape[1]
            raise PlanError(f"batch['{self.main}'] has {length} positions; the plan wants multiples of {sequence.unit}")
        if others and unlike and sequence is None:
            raise PlanError(
                f"batch['{others[0]}'] is one input for all layers, but '{unlike[0]}' divides the samples "
                f"otherwise than '{unlike[1]}'; pack the samples so that none is needed, or give all "
                "layers the same dp axes"
            )

    def _check_values(self, inputs: Mapping[str, Tensor], labels: Tensor) -> None:
        """A token that no rank holds would be a silent zero under a split vocabulary."""
        for name in ("input_ids", DECODER_INPUTS):
            if name in inputs:
                _check_range(name, "token", inputs[name], "vocabulary", self.model.vocabulary)
        classes = self.model.stacks[-1].output
        what, of = ("token", "vocabulary") if classes == self.model.vocabulary else ("class", "range")
        _check_range("labels", what, labels[labels != IGNORED], of, classes)


def _check_range(name: str, what: str, values: Tensor, of: str, size: int | None) -> None:
    least, most = (int(each) for each in values.aminmax()) if values.numel() else (0, 0)
    if size is not None and not 0 <= least <= most < size:
        wrong = least if least < 0 else most
        raise PlanError(f"batch['{name}'] has the {what} {wrong}; the model's {of} is 0 to {size - 1}")


def shifted_right(labels: Tensor, config: Any) -> Tensor:
    """What a decoder is given to put out `labels` [samples, length]: each position the label before it, the first the
    configuration's `decoder_start_token_id`, and padding where nothing counts (transformers' `shift_tokens_right`).

    Raises PlanError where the configuration does not name these.
    """
    start, padding = (getattr(config, name, None) for name in ("decoder_start_token_id", "pad_token_id"))
    start = padding if start is None else start
    if start is None or padding is None:
        raise PlanError(
            f"the batch has no '{DECODER_INPUTS}', and the model's configuration no 'pad_token_id' to make them of "
            "labels: add one of them"
        )
    return functional.pad(labels[:, :-1], (1, 0), value=start).masked_fill_(
        functional.pad(labels[:, :-1] == IGNORED, (1, 0), value=False), padding
    )
