"""A model's weights from one form to the other: a checkpoint of ours, or a Hugging Face folder with safetensors."""

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.document import write_text
from meshwright.errors import MeshwrightError
from meshwright.model.resolve import resolve_model
from meshwright.train import checkpoint
from meshwright.train.build import from_configuration
from meshwright.train.checkpoint import PARAMETERS
from meshwright.train.checkpoint_boxes import Stored
from meshwright.train.data.folders import write_folder
from meshwright.train.parts import Piece
from meshwright.train.weights import (
    CONFIG,
    Weights,
    find_weights,
    load_module,
    parameters_of,
    quiet_transformers,
)
from meshwright.version import __version__

SHARD = "5GB"
"""A file of safetensors is not larger than this, as transformers writes them (save_pretrained, max_shard_size)."""
_SAMPLES, _LENGTH = 2, 16
CLOSE = 1e-5
"""Logits in float32 that differ by less, of the largest, are the same: the order of a sum shows from 1e-7 on."""


class Converted(NamedTuple):
    """What was written."""

    source: Weights
    target: Weights
    parameters: int
    difference: float | None = None
    """Of logits, the largest, of the largest logit; none where they were not compared."""


def convert(
    source: str | Path, target: str | Path, *, verify: bool = False, trust_remote_code: bool = False
) -> Converted:
    """Write a checkpoint (or a run's last one) as a Hugging Face folder, or a Hugging Face folder as a checkpoint to
    begin from, which has parameters alone. `verify` compares the logits of transformers' own model, with the parameters
    as they were, and with those that were written.

    Raises MeshwrightError: what cannot be read, a target that is there already, logits that differ.
    """
    found, place = find_weights(source), Path(target).expanduser()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise MeshwrightError(f"{target} is there already, and is not empty: name a new folder")
    module = load_module(found, trust_remote_code=trust_remote_code)
    if place.exists():
        place.rmdir()
    if found.is_checkpoint:
        write_folder(place, partial(_write_hugging_face, module, found))
    else:
        _write_checkpoint(module, found, place)
    written = find_weights(place)
    parameters = sum(each.numel() for each in module.parameters())
    if not verify:
        return Converted(found, written, parameters)
    return Converted(found, written, parameters, _compared(found, written, trust_remote_code))


def _write_hugging_face(module: nn.Module, source: Weights, folder: Path) -> None:
    with quiet_transformers():
        module.save_pretrained(folder, max_shard_size=SHARD)  # type: ignore[operator]
        if source.tokenizer is not None:
            source.load_tokenizer().save(folder)


def _write_checkpoint(module: nn.Module, source: Weights, place: Path) -> None:
    facts = {
        "step": 0,
        "model": resolve_model(dict(source.config)).fingerprint,
        "processes": 1,
        "meshwright": __version__,
        "torch": torch.__version__,
    }
    stored = {
        f"{PARAMETERS}/{name}": Stored(each.shape, (Piece((0,) * each.dim(), each),))
        for name, each in parameters_of(module).items()
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    with _one_process():
        checkpoint.write(place, stored, facts)
    config = dict(source.config) | {"architectures": [type(module).__name__]}
    write_text(place / CONFIG, json.dumps(config, indent=2) + "\n")
    if source.tokenizer is not None:
        source.load_tokenizer().save(place)


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """A process group of this process alone, where there is none."""
    if dist.is_initialized():
        yield
        return
    with TemporaryDirectory(prefix="meshwright-") as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _compared(source: Weights, target: Weights, trust_remote_code: bool) -> float:
    """How far the logits of the two are apart. One of them is loaded by transformers from its own files; the other is
    transformers' own module, initialised as always, into which the checkpoint's parameters are copied by name.
    """
    hub, ours = (target, source) if source.is_checkpoint else (source, target)
    theirs = load_module(hub, dtype=torch.float32, trust_remote_code=trust_remote_code)
    mine = _filled(ours)
    inputs = example_inputs(theirs.config)
    with torch.no_grad():
        one, other = (_output(module, inputs) for module in (theirs, mine))
    difference = float((one - other).abs().max() / one.abs().max().clamp_min(1e-30))
    if not difference <= CLOSE:
        raise MeshwrightError(
            f"{target.place} does not compute what {source.place} does: their logits are {difference:.1e} apart, of "
            f"the largest (limit {CLOSE:.0e})"
        )
    return difference


def _filled(weights: Weights) -> nn.Module:
    with quiet_transformers():
        module = from_configuration(weights.config, weights.kind, torch.float32)
    own = dict(module.named_parameters())
    state = checkpoint.read_whole(weights.place)
    if own.keys() != state.keys():
        odd = min(own.keys() ^ state.keys())
        raise MeshwrightError(f"{weights.place} and its {CONFIG} do not agree on the parameter '{odd}'")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(state[name])
    return module.eval()


def example_inputs(config: Any) -> dict[str, Tensor]:
    """Something that any model of a configuration takes: tokens, or an image; of an encoder and decoder both."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is None:
        side, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
        return {"pixel_values": torch.randn(_SAMPLES, channels, side, side, generator=generator)}
    length = min(_LENGTH, getattr(config, "max_position_embeddings", None) or _LENGTH)
    tokens = torch.randint(vocabulary, (_SAMPLES, length), generator=generator)
    both = getattr(config, "is_encoder_decoder", False)
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens.flip(1)} if both else {})


def _output(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Logits, or of a model without a head the last hidden state."""
    found = module(**inputs)
    output: Tensor = found.logits if "logits" in found else found.last_hidden_state
    return output
