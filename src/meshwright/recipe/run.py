"""Run: a whole training, as `meshwright train` reads it: model, machine, recipe, data, how long, and what is kept."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from meshwright.document import Document, Record
from meshwright.explain import misplaced
from meshwright.recipe.data import Data
from meshwright.recipe.spec import Recipe
from meshwright.units import NonNegativeInt, PositiveFloat, PositiveInt

Shape = Literal["constant", "linear", "cosine", "wsd"]
"""How the learning rate goes on after its warm-up (`train.learning_rate` has the formulas)."""


class Schedule(Record):
    """The learning rate over the steps, as a share of the optimizer's `learning_rate`."""

    shape: Shape = "constant"
    warm_up: NonNegativeInt = 0
    """Steps of a linear rise from nothing."""
    decay: PositiveInt | None = None
    """Of `wsd`: the last steps, in which it falls linearly; none: a tenth of all."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share that is left at the end of `linear`, `cosine` and `wsd`."""


class Evaluation(Record):
    """The loss on data that is not learnt from."""

    every: PositiveInt
    """Steps."""
    batches: PositiveInt = 8
    """Global batches, the same each time."""
    data: Data | None = None
    """None: what `data.held_out` keeps back. Its tokenizer and chat template are those of the run's data."""


class Checkpoints(Record):
    """What is saved, and what a run begins from. The last step is always saved, and so is where a run is stopped."""

    every: PositiveInt | None = None
    """Steps."""
    keep: PositiveInt = 2
    """Whole checkpoints; older ones are removed after a newer one is whole."""
    background: bool = False
    """Write while the run goes on, from a copy in the host's memory."""
    resume: str = "latest"
    """`latest`: from the run folder's last whole checkpoint, where it has one; `never`; or a checkpoint's folder."""


class Profile(Record):
    """A window of steps that torch's profiler records, for Chrome and Perfetto."""

    first: NonNegativeInt = 10
    steps: PositiveInt = 3


class Logging(Record):
    """What a run tells. `metrics.jsonl` is always written."""

    every: PositiveInt = 10
    """Steps."""
    tensorboard: bool = True
    wandb: str | None = None
    """The name of a project."""
    mlflow: str | None = None
    """The name of an experiment."""
    profile: Profile | None = None


class Supervision(Record):
    """What happens where a process dies or hangs."""

    patience: PositiveFloat = 600.0
    """Seconds that a collective waits for its peers before the run ends."""
    restarts: NonNegativeInt = 0
    """How often the launcher begins again from the last whole checkpoint. (torchrun has `--max-restarts`.)"""


class Run(Document):
    """A whole training."""

    noun: ClassVar[str] = "run"
    meshwright_run: Literal[1] = 1
    model: str
    """A name of the catalogue, a `config.json` or its folder, or `module:function` for a torch module."""
    cluster: str | None = None
    """What to plan for: `cpu:4`, `8xh100`, a file; none: what the plan names, or the devices that there are."""
    plan: str | None = None
    """A plan file; none: the fastest that is found."""
    recipe: Recipe
    schedule: Schedule = Schedule()
    data: Data = Data()
    steps: PositiveInt | None = None
    tokens: PositiveFloat | None = None
    """In place of `steps`: as many steps as reach so many positions."""
    evaluation: Evaluation | None = None
    checkpoints: Checkpoints = Checkpoints()
    logging: Logging = Logging()
    supervision: Supervision = Supervision()
    folder: str = "run"
    """Where checkpoints, metrics and logs go, and the run and its plan as they were resolved."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.tokens is None):
            raise misplaced(("steps",), "give 'steps' or 'tokens', one of the two")
        decay = self.schedule.decay
        if decay is not None and self.schedule.shape != "wsd":
            raise misplaced(("schedule", "decay"), f"only 'wsd' has a decay, and the shape is '{self.schedule.shape}'")
        if self.schedule.warm_up + (decay or 0) > self.last_step:
            raise misplaced(
                ("schedule", "warm_up"), f"warm-up and decay are longer than the run's {self.last_step} steps"
            )
        return self

    @model_validator(mode="after")
    def _one_tokenizer(self) -> Self:
        judged = self.evaluation.data if self.evaluation is not None else None
        for name in ("tokenizer", "chat_template") if judged is not None else ():
            found, said = getattr(judged, name), f"what is judged has the {name} of what is learnt: leave it out"
            if found not in (Data.model_fields[name].default, getattr(self.data, name)):
                raise misplaced(("evaluation", "data", name), said)
        return self

    @property
    def tokens_per_step(self) -> int:
        """Positions of a global batch, of the last stream where a sample has several."""
        sequence = self.recipe.sequence
        length = sequence if isinstance(sequence, int) else list(sequence.values())[-1]
        return self.recipe.global_batch * length

    @property
    def last_step(self) -> int:
        """How many optimizer steps the run has."""
        return self.steps if self.steps is not None else math.ceil((self.tokens or 0.0) / self.tokens_per_step)
