"""Rules of our own runtime: what it has been proven to run (tests/parity). To widen it, add to what is proven."""

from collections.abc import Iterator
from operator import attrgetter
from typing import get_args

from meshwright.plan.numbers import show_mesh
from meshwright.plan.ranks import format_ranks
from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.rules_execution import EXECUTION_RULES
from meshwright.plan.rules_families import FAMILIES, FAMILY_RULES
from meshwright.plan.rules_losses import LOSS_RULES
from meshwright.plan.rules_sides import SIDE_RULES
from meshwright.plan.sites import Site
from meshwright.plan.spec import STATES, Offload, Repeat, Save
from meshwright.plan.words import Schedule

PROVEN_SPLITS = FAMILIES["llama"].splits
PROVEN_STATES = STATES
"""Besides none."""
_HALVES = ("zb-h1", "zbv", "dualpipev")
"""Schedules that cut backwards in halves."""

PROVEN: dict[str, tuple[object, ...]] = {
    "plan.schedule": get_args(Schedule),
    "recipe.precision.compute": ("fp32", "fp64", "bf16"),
    "recipe.precision.matmul": (None,),
    "recipe.optimizer.name": ("adamw", "sgd", "lion", "adafactor", "muon"),
}
"""A field of the inputs, by its path → the values that are proven."""


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
    _setting("runtime-compute", "recipe.precision.compute"),
    _setting("runtime-matmul", "recipe.precision.matmul", fix="remove it"),
)


_MIXED = ("bf16", "fp32", "fp32")
"""What is computed with, what gradients add up and are reduced in, what the optimizer steps."""


def _one_dtype(inputs: Inputs) -> Iterator[Finding]:
    precision = inputs.recipe.precision
    compute, reduce, master = precision.compute, precision.reduce, precision.master
    one = compute != "bf16" and reduce == compute and master in (None, compute)
    if compute in PROVEN["recipe.precision.compute"] and not one and (compute, reduce, master) != _MIXED:
        wide = "fp32" if compute == "bf16" else compute
        fix = f"write 'reduce: {wide}' and 'master: {'fp32' if compute == 'bf16' else 'null'}'"
        yield found("recipe.precision", compute=compute, reduce=reduce, master=master or "none", fix=fix)


def _mixed_halves(inputs: Inputs) -> Iterator[Finding]:
    if inputs.recipe.precision.mixed and inputs.plan.schedule in _HALVES:
        yield found("recipe.precision", schedule=inputs.plan.schedule)


def _mixed_chunks(inputs: Inputs) -> Iterator[Finding]:
    if inputs.recipe.precision.mixed and inputs.recipe.loss.chunks > 1:
        yield found("recipe.loss.chunks", chunks=inputs.recipe.loss.chunks)


def _moments_of_another_dtype(inputs: Inputs) -> Iterator[Finding]:
    precision = inputs.recipe.precision
    state, compute = inputs.recipe.optimizer.state, precision.master or precision.compute
    if not inputs.recipe.optimizer.keeps_nothing and state != compute:
        yield found("recipe.optimizer.state", state=state, compute=compute)


def _not_all_learns(inputs: Inputs) -> Iterator[Finding]:
    trainable = inputs.recipe.trainable
    for name in ("frozen", "lora"):
        if getattr(trainable, name):
            yield found(f"recipe.trainable.{name}", name=name)


def _other_ranks(inputs: Inputs) -> Iterator[Finding]:
    used = sorted({device for group in inputs.plan.groups.values() for device in group.devices})
    if used != list(range(len(used))):
        yield found("groups", used=format_ranks(used), wanted=format_ranks(range(len(used))))


def _sharded_halves(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites if inputs.plan.schedule in _HALVES else ():
        if site.row.state is not None:
            yield found(site.where, schedule=inputs.plan.schedule)


def _recomputed_halves(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites if inputs.plan.schedule in _HALVES else ():
        if site.row.runs_again:
            yield found(site.where, schedule=inputs.plan.schedule)


def _part_rows(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.part is not None and not all(part.experts for held in site.held for part in held.parts):
            yield found(site.where, part=site.row.part)


def _cut_experts(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        cut = next((role.split for role in site.row.roles.values() if role.split in ("tp", "tp+sp")), None)
        spread = [part.name for held in site.held for part in held.parts if part.experts]
        if cut and spread and site.row.part is None:
            yield found(site.where, split=cut, part=spread[0])


def _experts_recompute(inputs: Inputs) -> Iterator[Finding]:
    wholes = {(site.stage, name): site.row for site in inputs.sites if site.row.part is None for name in site.names}
    for site in inputs.sites:
        unlike = (wholes.get((site.stage, name)) for name in site.names if site.row.part is not None)
        row = next((row for row in unlike if row is not None and row.recompute != site.row.recompute), None)
        if row is not None:
            yield found(site.where, part=site.row.part, wanted=row.recompute)


def _recompute(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if isinstance(site.row.recompute, Repeat):
            yield found(site.where)


_WRITE_IN_PLACE = ("falcon",)
"""Families whose code in transformers adds in place to what a last matrix puts out."""


def _kept_unlike(inputs: Inputs) -> Iterator[Finding]:
    """Words of `save` by which the runtime would keep or move something else than is estimated."""
    for site in inputs.sites:
        save = site.row.recompute.save if isinstance(site.row.recompute, Save) else ()
        if save and any(part.experts for held in site.held for part in held.stack.parts):
            yield found(site.where, word=save[0], beside="routed experts", fix="write 'recompute: full'")
        written = next((word for word in save if word in ("matmul", "collective")), None)
        if written and inputs.model.family in _WRITE_IN_PLACE:
            yield found(site.where, word=written, beside="additions in place", fix="leave it out")
        if "attention" in save and any(core.relative for held in site.held for core in held.attentions):
            yield found(site.where, word="attention", beside="biases by distance", fix="leave it out")
        if "collective" in save and site.ways("ulysses") > 1:
            yield found(site.where, word="collective", beside="'ulysses'", fix="leave it out")
        if "collective" in save and "attention" not in save and site.ways("cp") > 1:
            yield found(site.where, word="collective", beside="'cp' alone", fix="add 'attention', or leave it out")


def _several_modules(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.runs_again and any(len(held.stack.modules) > 1 for held in site.held):
            yield found(site.where, span=site.row.span)


def _core_of_eager(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites if inputs.plan.execution.kernels == "hf-eager" else ():
        if site.row.singles_out_attention:
            yield found(site.where)


def _offload(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.offload != Offload():
            yield found(site.where)


def _attention_dropout(inputs: Inputs) -> Iterator[Finding]:
    if inputs.model.attention_dropout:
        yield found("model", model=inputs.model.name, probability=inputs.model.attention_dropout)


def _ring_asked_in_vain(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.recompute == "selective" and site.ways("cp") > 1:
            yield found(site.where)


def _unlike_ties(inputs: Inputs) -> Iterator[Finding]:
    sites = {name: site for site in inputs.sites if site.row.part is None for name in site.names}
    for owner, copies in inputs.model.tied_layers:
        for copy in copies:
            if owner in sites and copy in sites and not _tied_alike(sites[owner], sites[copy]):
                roles, mesh = show_mesh(sites[owner].row.roles), show_mesh(sites[owner].group.mesh)
                yield found(sites[copy].where, owner=owner, copy=copy, roles=roles, mesh=mesh)


def _tied_alike(owner: Site, copy: Site) -> bool:
    """Whether each rank of one holds the same slice as a rank of the other."""
    return owner.row.roles == copy.row.roles and list(owner.group.mesh.items()) == list(copy.group.mesh.items())


def _ties_gathered_twice(inputs: Inputs) -> Iterator[Finding]:
    sites = {name: site for site in inputs.sites if site.row.part is None for name in site.names}
    for owner, copies in inputs.model.tied_layers:
        for one, other in ((sites[owner], sites[copy]) for copy in copies if owner in sites and copy in sites):
            kept = one.row.state or ("master" if inputs.recipe.precision.mixed else None)
            if one.on == other.on and one.stage != other.stage and kept:
                yield found(other.where, owner=owner, stage=one.stage, state=kept)


RUNTIME_RULES: tuple[Rule, ...] = (
    Rule(
        "runtime-ranks",
        "runtime",
        _other_ranks,
        "the runtime's processes are numbered without gaps, and the groups have devices {used}",
        "use devices {wanted}",
    ),
    Rule(
        "runtime-halves",
        "runtime",
        _sharded_halves,
        "'{schedule}' cuts backwards in halves, and FSDP2 lets go of parameters and reduces gradients after the first",
        "write 'dp'",
    ),
    Rule(
        "runtime-halves-recompute",
        "runtime",
        _recomputed_halves,
        "'{schedule}' cuts backwards in halves, and torch recomputes a layer for the first and again for each of its "
        "weights",
        "write 'recompute: selective', or none",
    ),
    Rule(
        "runtime-part",
        "runtime",
        _part_rows,
        "the runtime gives routed experts roles of their own, and not part '{part}' yet",
        "remove the row",
    ),
    Rule(
        "runtime-experts-cut",
        "runtime",
        _cut_experts,
        "the runtime does not cut experts by '{split}' yet",
        "add a row with 'part: {part}', and 'ep' or 'dp' on that axis",
    ),
    Rule(
        "runtime-experts-recompute",
        "runtime",
        _experts_recompute,
        "the runtime recomputes part '{part}' as the rest of its layer",
        "write 'recompute: {wanted}'",
    ),
    Rule(
        "runtime-recompute",
        "runtime",
        _recompute,
        "the runtime does not recompute what some operators put out and keep the rest yet",
        "write 'recompute: full'",
    ),
    Rule(
        "runtime-recompute-save",
        "runtime",
        _kept_unlike,
        "the runtime does not keep what 'save: {word}' names beside {beside} yet",
        "{fix}",
    ),
    Rule(
        "runtime-recompute-modules",
        "runtime",
        _several_modules,
        "'{span}' is several modules, and the runtime recomputes layers that are one",
        "write 'recompute: none'",
    ),
    Rule(
        "runtime-recompute-core",
        "runtime",
        _core_of_eager,
        "the runtime recomputes or keeps a core attention that is one function, and that of 'hf-eager' is several",
        "write 'recompute: full', or build the model with attn_implementation='sdpa' and write 'kernels: hf-sdpa'",
    ),
    Rule(
        "runtime-offload",
        "runtime",
        _offload,
        "the runtime does not offload yet",
        "remove 'offload'",
    ),
    Rule(
        "runtime-attention-dropout",
        "runtime",
        _attention_dropout,
        "model '{model}' drops attention ({probability:g}), and the runtime draws that from its counter in an "
        "attention of plain products, which takes longer and more memory than torch's",
        "give the model an attention dropout of 0",
        "warning",
    ),
    Rule(
        "runtime-ring-recompute",
        "runtime",
        _ring_asked_in_vain,
        "recompute 'selective' has no effect on a ring, which keeps no attention weights",
        "write 'recompute: none'",
    ),
    Rule(
        "runtime-ties",
        "runtime",
        _unlike_ties,
        "'{copy}' shares a parameter with '{owner}', and the runtime keeps it in one sharding",
        "write {roles} on a mesh {mesh} for both",
    ),
    Rule(
        "runtime-ties-of-stages",
        "runtime",
        _ties_gathered_twice,
        "a parameter is shared with '{owner}' in stage {stage} on the same devices, and FSDP2 cannot gather it for "
        "each stage by itself",
        "remove '{state}' from both",
    ),
    *FAMILY_RULES,
    *SIDE_RULES,
    *SETTINGS,
    *LOSS_RULES,
    *EXECUTION_RULES,
    Rule(
        "runtime-one-dtype",
        "runtime",
        _one_dtype,
        "the runtime computes, reduces and steps in one dtype, or in bf16, fp32 and fp32, and the recipe has "
        "{compute}, {reduce} and {master}",
        "{fix}",
    ),
    Rule(
        "runtime-mixed-chunks",
        "runtime",
        _mixed_chunks,
        "a loss in {chunks} pieces is not proven with masters beside what is computed with",
        "write 'chunks: 1'",
    ),
    Rule(
        "runtime-mixed-halves",
        "runtime",
        _mixed_halves,
        "'{schedule}' cuts backwards in halves, and FSDP2, which casts parameters, lets go of them after the first",
        "write 'schedule: 1f1b'",
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
