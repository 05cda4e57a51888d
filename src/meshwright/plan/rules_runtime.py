"""Rules of our own runtime: what it has been proven to run (tests/parity). To widen it, add to what is proven."""

from collections.abc import Iterator
from operator import attrgetter

from meshwright.plan.numbers import divides, nearest_number, show_mesh
from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.rules_sizes import vocabularies
from meshwright.plan.spec import Offload

PROVEN_SPLITS = ("dp", "tp")
PROVEN_STATES = ("zero3",)
"""Besides none."""
_NEAREST_SPLIT = {"tp+sp": "tp"}
"""Splits that are not proven → the nearest that is, where that is not dp."""

_FAMILIES = ("llama", "gpt2")

PROVEN: dict[str, tuple[object, ...]] = {
    "plan.schedule": ("1f1b",),
    "model.family": _FAMILIES,
    "recipe.precision.compute": ("fp32", "fp64"),
    "recipe.precision.matmul": (None,),
    "recipe.optimizer.name": ("adamw", "sgd"),
    "recipe.loss.kind": ("causal_lm",),
    "recipe.loss.chunks": (1,),
}
"""A field of the inputs, by its path → the values that are proven."""


_KERNELS = ("hf-eager", "hf-sdpa")
"""Kernel sets that a transformers model has by itself: the runtime runs the module as it is."""


def _setting(name: str, field: str, fix: str = "") -> Rule:
    """A rule for a field of `PROVEN`."""
    proven = PROVEN[field]

    def check(inputs: Inputs) -> Iterator[Finding]:
        value = attrgetter(field)(inputs)
        if value not in proven:
            yield found(field.removeprefix("plan."), value=value)

    message = f"the runtime does not run '{field.rpartition('.')[2]}: {{value}}' yet"
    return Rule(name, "runtime", check, message, fix or f"write {' or '.join(str(value) for value in proven)}")


SETTINGS: tuple[Rule, ...] = (
    _setting("runtime-schedule", "plan.schedule"),
    _setting("runtime-family", "model.family", fix=f"take a model of the family {' or '.join(_FAMILIES)}"),
    _setting("runtime-compute", "recipe.precision.compute"),
    _setting("runtime-matmul", "recipe.precision.matmul", fix="remove it"),
    _setting("runtime-optimizer", "recipe.optimizer.name"),
    _setting("runtime-loss", "recipe.loss.kind"),
    _setting("runtime-chunks", "recipe.loss.chunks"),
)


def _one_dtype(inputs: Inputs) -> Iterator[Finding]:
    precision = inputs.recipe.precision
    if precision.compute not in PROVEN["recipe.precision.compute"]:
        return
    if precision.reduce != precision.compute or precision.master not in (None, precision.compute):
        yield found(
            "recipe.precision",
            compute=precision.compute,
            reduce=precision.reduce,
            master=precision.master or "none",
        )


def _moments_of_another_dtype(inputs: Inputs) -> Iterator[Finding]:
    state, compute = inputs.recipe.optimizer.state, inputs.recipe.precision.compute
    if not inputs.recipe.optimizer.keeps_nothing and state != compute:
        yield found("recipe.optimizer.state", state=state, compute=compute)


def _not_all_learns(inputs: Inputs) -> Iterator[Finding]:
    trainable = inputs.recipe.trainable
    for name in ("frozen", "lora"):
        if getattr(trainable, name):
            yield found(f"recipe.trainable.{name}", name=name)


def _pipeline(inputs: Inputs) -> Iterator[Finding]:
    stages, groups = len(inputs.plan.stages), len(inputs.plan.groups)
    if stages > 1 or groups > 1:
        yield found("stages", stages=stages, groups=groups)


def _other_ranks(inputs: Inputs) -> Iterator[Finding]:
    if len(inputs.plan.groups) > 1:
        return
    for name, group in inputs.plan.groups.items():
        if group.devices != tuple(range(group.size)):
            yield found(f"groups.{name}.devices", wanted=f"0-{group.size - 1}" if group.size > 1 else "0")


def _unproven_split(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        for split in dict.fromkeys(role.split for role in site.row.roles.values()):
            if split not in PROVEN_SPLITS:
                yield found(site.where, split=split, nearest=_NEAREST_SPLIT.get(split, "dp"))


def _unproven_state(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.state not in (None, *PROVEN_STATES):
            yield found(site.where, state=site.row.state)


def _part_rows(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.part is not None:
            yield found(site.where, part=site.row.part)


def _recompute(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.recompute != "none":
            yield found(site.where)


def _offload(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.offload != Offload():
            yield found(site.where)


def _kv_copies(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        ways = site.ways("tp")
        for heads in {attention.kv_heads for held in site.held for attention in held.attentions}:
            if heads % ways:
                yield found(site.where, heads=heads, ways=ways, nearest=nearest_number(ways, divides(heads)))


def _uneven_vocabulary(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        ways = site.ways("tp")
        for rows in {size for held in site.held for size in vocabularies(held)}:
            if rows % ways:
                yield found(site.where, rows=rows, ways=ways, nearest=nearest_number(ways, divides(rows)))


def _attention_dropout(inputs: Inputs) -> Iterator[Finding]:
    if inputs.model.attention_dropout and inputs.plan.world_size > 1:
        yield found("model", model=inputs.model.name, probability=inputs.model.attention_dropout)


def _unlike_ties(inputs: Inputs) -> Iterator[Finding]:
    sites = {name: site for site in inputs.sites if site.row.part is None for name in site.names}
    for owner, copies in inputs.model.tied_layers:
        for copy in copies:
            if owner in sites and copy in sites and sites[owner].row.roles != sites[copy].row.roles:
                yield found(sites[copy].where, owner=owner, copy=copy, roles=show_mesh(sites[owner].row.roles))


def _kernels_of_another(inputs: Inputs) -> Iterator[Finding]:
    kernels = inputs.plan.execution.kernels
    if kernels not in _KERNELS:
        yield found("execution.kernels", kernels=kernels)


def _tensor_overlap(inputs: Inputs) -> Iterator[Finding]:
    if "tensor" in inputs.plan.execution.overlap:
        yield found("execution.overlap", left=_listed(inputs.plan.execution.overlap))


def _listed(overlap: tuple[str, ...]) -> str:
    return f"[{', '.join(each for each in overlap if each != 'tensor')}]"


def _no_prefetch(inputs: Inputs) -> Iterator[Finding]:
    if inputs.plan.execution.prefetch == 0 and any(site.row.state == "zero3" for site in inputs.sites):
        yield found("execution.prefetch")


RUNTIME_RULES: tuple[Rule, ...] = (
    Rule(
        "runtime-one-stage",
        "runtime",
        _pipeline,
        "the runtime runs one stage on one group, and the plan has {stages} on {groups}: pipelines are not proven yet",
        "put all layers into one stage",
    ),
    Rule(
        "runtime-ranks",
        "runtime",
        _other_ranks,
        "the runtime runs on all ranks in their order",
        "write 'devices: {wanted}'",
    ),
    Rule(
        "runtime-split",
        "runtime",
        _unproven_split,
        "the runtime does not run '{split}' yet",
        "write '{nearest}'",
    ),
    Rule(
        "runtime-state",
        "runtime",
        _unproven_state,
        "the runtime does not run '{state}' yet",
        f"write '{' or '.join(PROVEN_STATES)}', or none",
    ),
    Rule(
        "runtime-part",
        "runtime",
        _part_rows,
        "the runtime does not give part '{part}' roles of its own yet",
        "remove the row",
    ),
    Rule(
        "runtime-recompute",
        "runtime",
        _recompute,
        "the runtime does not recompute yet",
        "write 'recompute: none'",
    ),
    Rule(
        "runtime-offload",
        "runtime",
        _offload,
        "the runtime does not offload yet",
        "remove 'offload'",
    ),
    Rule(
        "runtime-kv-heads",
        "runtime",
        _kv_copies,
        "{heads} KV heads do not divide over tp {ways}, and the runtime does not copy them yet",
        "use tp {nearest}",
    ),
    Rule(
        "runtime-vocabulary",
        "runtime",
        _uneven_vocabulary,
        "a vocabulary of {rows} does not divide over tp {ways}, and the runtime does not pad it yet",
        "use tp {nearest}",
    ),
    Rule(
        "runtime-attention-dropout",
        "runtime",
        _attention_dropout,
        "model '{model}' drops attention ({probability:g}), and the runtime cannot draw that alike under all plans yet",
        "give the model an attention dropout of 0, or plan for one device",
    ),
    Rule(
        "runtime-ties",
        "runtime",
        _unlike_ties,
        "'{copy}' shares a parameter with '{owner}', and the runtime keeps it in one sharding",
        "write {roles} for both",
    ),
    *SETTINGS,
    Rule(
        "runtime-kernels",
        "runtime",
        _kernels_of_another,
        "kernels '{kernels}' have no effect in the runtime, which runs the module as it is",
        f"write '{_KERNELS[-1]}', and the estimate is of what runs",
        "warning",
    ),
    Rule(
        "runtime-prefetch",
        "runtime",
        _no_prefetch,
        "prefetch 0 has no effect in the runtime: FSDP2 gathers one layer ahead by itself",
        "write 'prefetch: 1'",
        "warning",
    ),
    Rule(
        "runtime-overlap",
        "runtime",
        _tensor_overlap,
        "overlap of 'tensor' has no effect in the runtime, which moves each exchange in one piece",
        "write 'overlap: {left}', and the estimate is of what runs",
        "warning",
    ),
    Rule(
        "runtime-one-dtype",
        "runtime",
        _one_dtype,
        "the runtime computes, reduces and steps in one dtype, and the recipe has {compute}, {reduce} and {master}",
        "write 'reduce: {compute}' and 'master: null'",
    ),
    Rule(
        "runtime-moments",
        "runtime",
        _moments_of_another_dtype,
        "the optimizer's state '{state}' has no effect: torch's optimizers keep moments in the parameters' dtype",
        "write 'state: {compute}'",
        "warning",
    ),
    Rule(
        "runtime-trainable",
        "runtime",
        _not_all_learns,
        "the runtime trains all parameters, and the recipe has '{name}'",
        "remove '{name}'",
    ),
)
