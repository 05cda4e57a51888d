"""Rules of our own runtime on models with an encoder and a decoder, and on attention that looks both ways."""

from collections.abc import Iterator

from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.sites import Site


def _unlike_sides(inputs: Inputs) -> Iterator[Finding]:
    splits = ("dp", "tp", "tp+sp") if inputs.model.has_relative_positions else ("dp",)
    firsts: dict[int, Site] = {}
    for site in inputs.sites if inputs.model.sides else ():
        first = firsts.setdefault(site.stage, site)
        if _axes(site, splits) != _axes(first, splits):
            yield found(site.where, other=first.where, splits=" and ".join(splits))


def _axes(site: Site, splits: tuple[str, ...]) -> list[set[str]]:
    wide = {axis for axis, size in site.group.mesh.items() if size > 1}
    return [wide & {*site.row.axes(split)} for split in splits]


def _cut_sides(inputs: Inputs) -> Iterator[Finding]:
    """An encoder and a decoder go to two stages; encoders without biases that its layers share, to several."""
    sides, relative = inputs.model.sides, inputs.model.has_relative_positions
    layers = [layer.name for layer in inputs.model.layers]
    last = max((layers.index(side) for side in sides), default=0)
    groups = [stage.on for stage in inputs.plan.stages]
    for number, stage in enumerate(inputs.plan.stages[1:] if sides else (), 1):
        at = next((layers.index(name) for name in stage.names() if name in layers), -1)
        if not (at == last + 1 or (at <= last and not relative)) or stage.on in groups[:number]:
            yield found(
                f"stages.{number}",
                layer=layers[last + 1],
                several=", or between layers of the encoder" * (not relative),
            )


def _core_that_drops(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites if inputs.model.attention_dropout and not inputs.model.is_causal else ():
        if site.row.singles_out_attention:
            yield found(site.where)


SIDE_RULES: tuple[Rule, ...] = (
    Rule(
        "runtime-sides",
        "runtime",
        _unlike_sides,
        "all layers of a model with an encoder and a decoder see what others made, and this row has other {splits} "
        "axes than {other}",
        "give all layers the same",
    ),
    Rule(
        "runtime-side-stages",
        "runtime",
        _cut_sides,
        "the runtime cuts a model with an encoder and a decoder before '{layer}'{several}, each stage on a group of "
        "its own",
        "let a stage begin at '{layer}'",
    ),
    Rule(
        "runtime-core-dropout",
        "runtime",
        _core_that_drops,
        "the runtime does not draw the dropout of attention anew that looks both ways or at another stream",
        "write 'recompute: full'",
    ),
)
