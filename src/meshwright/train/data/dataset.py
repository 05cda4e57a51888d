"""A run's samples: the whole global batch of each step, the same under any plan."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from meshwright.errors import MeshwrightError
from meshwright.model.spec import ModelSpec
from meshwright.recipe.data import Data, TrainedTokenizer
from meshwright.recipe.spec import Recipe
from meshwright.train.data.encode import conversation, is_conversation
from meshwright.train.data.folders import write_folder
from meshwright.train.data.order import Order
from meshwright.train.data.rows import Rows, divided
from meshwright.train.data.sources import read_rows
from meshwright.train.data.stream import Mark, Streamed
from meshwright.train.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from meshwright.train.tasks.choice import Samples, Setting

Part = Literal["train", "held_out"]
TOKENIZER = "tokenizer"
"""The folder of a run in which the tokenizer is that was learnt from its data."""
_PROBE = "def f(x): return x  # 12,345 – naïve 例"
"""Whether two tokenizers are the same shows in what they make of this."""
_AHEAD = 1024  # places whose samples are found at one time, which take hardly longer than a few
_LOOKED_AT = 4
"""Rows of which it shows whether two sets are the same."""


class Dataset:
    """The samples of a task in their order. A batch is a function of the seed and the step alone."""

    def __init__(
        self, samples: "Samples", order: Order | None, batch: int, tokenizer: Tokenizer, identity: dict[str, Any]
    ) -> None:
        self.tokenizer = tokenizer
        self._samples, self._order, self._batch, self._identity = samples, order, batch, identity
        self._ids: dict[int, list[int]] = {}
        pieces = getattr(samples, "pieces", None)
        self._stream = pieces if isinstance(pieces, Streamed) else None

    @property
    def steps(self) -> int | None:
        """Steps until every sample was seen once; none where that is not known before."""
        return None if self._order is None else -(-self._order.count // self._batch)

    def sample_ids(self, step: int) -> list[int]:
        """The numbers of a step's samples."""
        if self._order is None:
            return list(range(step * self._batch, (step + 1) * self._batch))
        if step not in self._ids:
            steps = range(step, step + max(1, _AHEAD // self._batch))
            found = self._order.at(range(steps.start * self._batch, steps.stop * self._batch))
            self._ids = {each: found[at * self._batch : (at + 1) * self._batch] for at, each in enumerate(steps)}
        return self._ids[step]

    def batch(self, step: int) -> dict[str, Tensor]:
        """The whole global batch of a step: [global batch, ...] each."""
        first = step * self._batch
        samples = [self._samples.sample(number, first + at) for at, number in enumerate(self.sample_ids(step))]
        return {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in samples[0]}

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps before `step`, as plain data: which samples these are, and how far they are read."""
        if self._stream is None:
            return dict(self._identity)
        return self._identity | {"read": list(self._stream.mark(step * self._batch)), "pieces": step * self._batch}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made. Raises MeshwrightError where its samples are others than these."""
        for name, value in self._identity.items():
            if state.get(name, value) != value:
                raise MeshwrightError(
                    f"the checkpoint was trained on other samples: {name} was {state[name]}, and is {value} now; "
                    "resume with the data, tokenizer, sequence, batch and seed that it had"
                )
        if self._stream is not None and "read" in state:
            self._stream.remember(state["pieces"], Mark(*state["read"]))


def prepare(data: Data, recipe: Recipe, model: ModelSpec, folder: Path) -> None:
    """Do once, in a run's folder, what all processes would else do each: learn the tokenizer, and write the tokens.
    Raises MeshwrightError.
    """
    for part in ("train", "held_out") if data.held_out else ("train",):
        open_data(data, recipe, model, part=part, folder=folder)


def open_data(
    data: Data, recipe: Recipe, model: ModelSpec, *, part: Part = "train", folder: Path | None = None
) -> Dataset:
    """The samples of a recipe, for a model; `held_out`: those that `data.held_out` keeps back. `folder` is the run's,
    where what was prepared is found.

    Raises MeshwrightError where the data cannot be read, is empty, lacks what the task reads, or does not fit the
    model.
    """
    from meshwright.train.tasks.choice import Setting, row_order, samples_of

    found = read_rows(data)
    learnt = divided(found, data.held_out, held_out=False)
    rows = learnt if part == "train" else divided(found, data.held_out, held_out=True)
    setting = Setting(data, recipe, model, rows, _tokenizer(data, recipe, learnt, folder), every=found)
    content = _content(setting, part)
    if folder is not None:
        setting = replace(setting, cache=folder / "tokens" / _digest(content))
    samples = samples_of(setting)
    order = None if samples.count is None else row_order(setting, samples.count, samples.block)
    identity = {"content": _digest(content), **_settings(setting)}
    return Dataset(samples, order, recipe.global_batch, setting.tokenizer, identity)


def _tokenizer(data: Data, recipe: Recipe, rows: Rows, folder: Path | None) -> Tokenizer:
    """The one that the data section names; one that is learnt is kept in the run's folder."""
    from meshwright.train.tasks.choice import texts_of

    if not isinstance(data.tokenizer, TrainedTokenizer):
        return load_tokenizer(data.tokenizer, data.chat_template)
    kept = None if folder is None else folder / TOKENIZER
    if kept is not None and kept.is_dir():
        return load_tokenizer(str(kept), data.chat_template)
    texts = texts_of(data, recipe.loss.kind, rows)
    tokenizer = train_tokenizer(texts, data.tokenizer.vocabulary, data.chat_template)
    if kept is not None:
        write_folder(kept, tokenizer.save)
    return tokenizer


def _content(setting: "Setting", part: Part) -> dict[str, Any]:
    """What the tokens of a set depend on."""
    rows, data = setting.rows, setting.data
    some = [rows[round(at * (len(rows) - 1) / (_LOOKED_AT - 1))] for at in range(_LOOKED_AT)]
    ways = data.model_dump(mode="json", include={"columns", "held_out", "limit", "packing", "streaming"})
    talks = is_conversation(some[0], data.columns)
    return {
        "rows": len(rows),
        "some": [{key: each for key, each in row.items() if isinstance(each, int | str)} for row in some],
        "tokenizer": [tokens.tolist() for tokens in setting.tokenizer.encode_all([_PROBE])],
        "turn": setting.tokenizer.chat(conversation(some[0], data.columns)) if talks else None,
        "part": part,
        "task": setting.recipe.loss.kind,
    } | ways


def _settings(setting: "Setting") -> dict[str, Any]:
    """What the order and the shape of samples depend on, in words for a message."""
    recipe, data = setting.recipe, setting.data
    return {
        "sequence": recipe.sequence,
        "global_batch": recipe.global_batch,
        "seed": recipe.seed,
        "shuffle": data.shuffle,
    }


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
