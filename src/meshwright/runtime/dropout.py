"""Which modules of a plan's layers draw from the counter, and for which samples, positions, channels and heads."""

from functools import partial

from torch import nn

from meshwright.errors import PlanError
from meshwright.model.spec import Layer
from meshwright.runtime.place import Place
from meshwright.runtime.randomness import Counter, draw_calls, install_dropout
from meshwright.runtime.sequence import Sequence
from meshwright.runtime.split import dropout_calls, dropped_between, drops_attention


def draw_dropout(module: nn.Module, place: Place, sequence: Sequence, counter: Counter) -> None:
    """Let the dropout of this rank's layers draw what one process would. Attention that `sequence` has put in draws by
    itself.
    """
    if place.inputs.model.sides:
        _draw_between(module, place, counter)
    for placed in place.here:
        layer, ranks = place.layer(placed), place.peers(placed, "tensor")
        share = (ranks.place, ranks.size) if ranks else (0, 1)
        held, some = partial(place.first_sample, placed), partial(sequence.between, placed)
        inside = dropped_between(layer)
        for name, inner in _dropouts(module, layer):
            install_dropout(inner, name, counter, held, some, share=share if name in inside else (0, 1))
        if dropout_calls(layer) or (drops_attention(layer) and not sequence.is_needed):
            for path in layer.modules:
                draw_calls(module.get_submodule(path), path, counter, partial(place.held, placed), share)


def _draw_between(module: nn.Module, place: Place, counter: Counter) -> None:
    """Of a model with an encoder and a decoder: the dropout that its code calls between layers, and modules of other
    stages' layers that it asks here too.
    """
    here = place.here[0]
    draw_calls(module, "", counter, partial(place.held, here))
    held = {placed.layer for placed in place.here}
    for layer in (layer for layer in place.inputs.model.layers if layer.name not in held):
        for path in layer.modules:
            inner = module.get_submodule(path)
            if isinstance(inner, nn.Dropout):
                install_dropout(inner, path, counter, partial(place.first_sample, here))


def _dropouts(module: nn.Module, layer: Layer) -> list[tuple[str, nn.Dropout]]:
    """The dropout modules of a layer that run once, by their names."""
    of_calls = dropout_calls(layer)
    inside = [found for path in layer.modules for found in module.get_submodule(path).named_modules(prefix=path)]
    return [(name, inner) for name, inner in inside if isinstance(inner, nn.Dropout) and name not in of_calls]


def check_drawn(module: nn.Module) -> None:
    """Raises PlanError where a model draws from torch's own generator, which differs from rank to rank: layers that are
    skipped at random (Fan 2019), or features that are masked (Park 2019).
    """
    skipping = next((name for name, inner in module.named_modules() if getattr(inner, "layerdrop", 0)), None)
    if skipping is not None:
        raise PlanError(
            f"'{skipping}' skips layers at random, which every rank would draw for itself: build the model with a "
            "layerdrop of 0"
        )
    config = getattr(module, "config", None)
    if getattr(config, "apply_spec_augment", False):
        raise PlanError(
            "the model masks features at random, which every rank would draw for itself: build it with "
            "apply_spec_augment=False, and mask the batch"
        )
