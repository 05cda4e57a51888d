"""Whole modules with their trained weights, on one process: from a Hugging Face folder, or from a checkpoint."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.document import read_text
from meshwright.errors import DocumentError, MeshwrightError, first_line
from meshwright.model.resolve import configuration
from meshwright.recipe.run import Run
from meshwright.train.build import from_configuration, hub_class, hub_configuration
from meshwright.train.checkpoint import FACTS, read_whole
from meshwright.train.checkpoints import Checkpoints
from meshwright.train.data import TOKENIZER, Tokenizer, load_tokenizer

CONFIG, RUN = "config.json", "run.yaml"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Weights:
    """Where a model's weights are, and what it is."""

    place: Path
    """A Hugging Face folder, or a checkpoint."""
    is_checkpoint: bool
    config: Mapping[str, Any]
    """Its Hugging Face configuration."""
    run: Run | None
    """The run that trained it, where one did."""

    @property
    def kind(self) -> str:
        """The loss that it is for; of one without a run, the next token's."""
        return self.run.recipe.loss.kind if self.run else "causal_lm"

    @property
    def tokenizer(self) -> str | None:
        """The name of its tokenizer; none where it came without one."""
        of_run = [self.place.parent.parent / TOKENIZER] if self.is_checkpoint else []
        for folder in (self.place, *of_run):
            if any((folder / name).is_file() for name in _TOKENIZERS):
                return str(folder)
        named = self.run.data.tokenizer if self.run else None
        return named if isinstance(named, str) else None

    def load_tokenizer(self, named: str | None = None) -> Tokenizer:
        """The tokenizer that is named, or its own. Raises MeshwrightError where it has none."""
        found = named or self.tokenizer
        if found is None:
            raise MeshwrightError(
                f"{self.place} comes without a tokenizer; name one: --tokenizer bytes, a file or a folder"
            )
        return load_tokenizer(found, self.run.data.chat_template if self.run else None)


def find_weights(what: str | Path) -> Weights:
    """A Hugging Face folder, a checkpoint, or a run's folder, whose last checkpoint is taken. Raises MeshwrightError,
    DocumentError.
    """
    place = Path(what).expanduser()
    if not place.is_dir():
        raise MeshwrightError(f"{what} is no folder: name a Hugging Face folder, a checkpoint, or a run's folder")
    latest = Checkpoints(place).latest()
    if latest is not None:
        place = latest
    if not (place / FACTS).is_file():
        if not (place / CONFIG).is_file():
            raise MeshwrightError(f"{what} has neither a {CONFIG} nor a checkpoint in it")
        return Weights(place, False, _read_json(place / CONFIG), None)
    of_run = place.parent.parent
    run = Run.read(of_run / RUN) if (of_run / RUN).is_file() else None
    return Weights(place, True, _configuration(place, of_run, run), run)


def load_module(weights: Weights, *, dtype: torch.dtype | None = None, trust_remote_code: bool = False) -> nn.Module:
    """The module in evaluation mode, in a dtype or as it was written. No code of the folder's is run unless
    `trust_remote_code` says so. Raises MeshwrightError where a parameter is missing, or is none of the model's.
    """
    found = hub_class(weights.config, weights.kind)
    if "auto_map" in weights.config and not trust_remote_code and found.__name__.startswith("Auto"):
        raise MeshwrightError(f"{weights.place} needs its own code to run; if you trust it: --trust-remote-code")
    state = read_whole(weights.place) if weights.is_checkpoint else None
    with quiet_transformers():
        options: dict[str, Any] = {"local_files_only": True, "output_loading_info": True, "dtype": dtype or "auto"}
        options["trust_remote_code"] = trust_remote_code
        try:
            if state is not None:
                with torch.device("meta"):  # an Auto class loads from a folder alone
                    found = type(from_configuration(weights.config, weights.kind, torch.float32))
                kept = dtype or next(iter(state.values())).dtype
                options |= {"config": hub_configuration(weights.config), "state_dict": state, "dtype": kept}
            module, told = found.from_pretrained(str(weights.place) if state is None else None, **options)
        except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
            raise MeshwrightError(f"{weights.place} cannot be loaded: {first_line(error)}") from None
    _check_told(weights.place, told)
    assert isinstance(module, nn.Module)
    return module.eval()


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without its progress bars and remarks: what matters of them is raised as an error."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter by the first of its names."""
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def _configuration(place: Path, of_run: Path, run: Run | None) -> Mapping[str, Any]:
    """Of a checkpoint: what is kept with it or its run, or what the run names."""
    for folder in (place, of_run):
        if (folder / CONFIG).is_file():
            return _read_json(folder / CONFIG)
    found = configuration(run.model) if run is not None else None
    if found is None:
        raise MeshwrightError(f"{place} does not say which transformers model it is of: put its {CONFIG} there")
    return found


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_text(path))
    except ValueError as error:
        raise DocumentError(f"{path}: no JSON ({error})") from None
    if not isinstance(found, dict) or "model_type" not in found:
        raise DocumentError(f"{path}: no configuration of a transformers model: 'model_type' is missing")
    return found


def _check_told(place: Path, told: Mapping[str, Any]) -> None:
    for kind, what in (("missing_keys", "has no"), ("unexpected_keys", "has, and the model has no")):
        if told.get(kind):
            names = sorted(map(str, told[kind]))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise MeshwrightError(
                f"{place} {what} parameter '{names[0]}'{more}: it is of another model than its {CONFIG}"
            )
    if told.get("mismatched_keys"):
        raise MeshwrightError(
            f"{place} has parameters of other shapes than its {CONFIG}: {next(iter(told['mismatched_keys']))}"
        )
