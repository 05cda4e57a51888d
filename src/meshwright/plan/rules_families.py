"""Rules of our own runtime by family: what of each the proofs hold (tests/parity). What they do not is refused."""

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.model.cuts import between_cuts, fuses_heads
from meshwright.model.operators import (
    Activation,
    Add,
    Attention,
    Convolution,
    Dropout,
    Embedding,
    Linear,
    Loss,
    Norm,
    Pool,
    Rotary,
)
from meshwright.model.spec import ModelSpec
from meshwright.plan.numbers import divides, nearest_number
from meshwright.plan.rule import Finding, Inputs, Rule, found


@dataclass(frozen=True)
class Proof:
    """What is proven of a family, on top of all states."""

    splits: tuple[str, ...] = ("dp", "tp")
    stages: bool = False
    """True where it runs on several stages."""
    attention_dropout: bool = False
    experts: tuple[str, ...] = ()
    """Splits of a row of its routed experts alone."""
    mixed: bool = False
    """True where it is proven in bf16 with masters in float32."""


_ALL = Proof(("dp", "cp", "ulysses", "tp", "tp+sp", "copy"), stages=True, attention_dropout=True, mixed=True)
FAMILIES: dict[str, Proof] = {
    "llama": _ALL,
    "gpt2": _ALL,
    "mistral": Proof(stages=True, mixed=True),
    "qwen3": Proof(stages=True, mixed=True),
    "phi3": Proof(stages=True, mixed=True),
    "gemma3_text": Proof(stages=True, mixed=True),
    "gpt_neox": Proof(stages=True, mixed=True),
    "opt": Proof(stages=True, mixed=True),
    "mixtral": Proof(_ALL.splits, stages=True, attention_dropout=True, experts=("dp", "ep")),
    "qwen3_moe": Proof(_ALL.splits, stages=True, attention_dropout=True, experts=("dp", "ep")),
    "falcon": Proof(stages=True, mixed=True),
    "bert": Proof(stages=True, attention_dropout=True, mixed=True),
    "vit": Proof(stages=True, attention_dropout=True, mixed=True),
    "t5": Proof(stages=True, attention_dropout=True),
    "whisper": Proof(stages=True, attention_dropout=True, mixed=True),
}
OWN = Proof(stages=True, mixed=True)
"""What is proven of a model that no family covers, where it is traced and is a decoder: `is_own_decoder`."""

NETWORK = Proof(("dp", "copy"))
"""What is proven of a traced network of convolutions: `is_own_network`."""

_OWN_OPERATORS = (Activation, Add, Attention, Dropout, Embedding, Linear, Loss, Norm, Rotary)
_NETWORK_OPERATORS = (Activation, Add, Convolution, Linear, Loss, Norm, Pool)


def proof_of(model: ModelSpec) -> Proof | None:
    """What is proven of a model; none where nothing is."""
    known = FAMILIES.get(model.family) or (OWN if is_own_decoder(model) else None)
    return known or (NETWORK if is_own_network(model) else None)


def is_own_decoder(model: ModelSpec) -> bool:
    """Whether a traced model is a plain decoder: tokens in, one layer after the other, causal attention, a value for
    each word out.
    """
    chain = all(stack.stream == "tokens" and not stack.side and len(stack.reads) < 2 for stack in model.stacks)
    operators = [operator for stack in model.stacks for operator in stack.operators]
    plain = all(isinstance(operator, _OWN_OPERATORS) and _is_plain(operator) for operator in operators)
    words = model.vocabulary is not None and model.stacks[-1].output == model.vocabulary
    return model.source.startswith("traced from") and set(model.streams) == {"tokens"} and chain and plain and words


def is_own_network(model: ModelSpec) -> bool:
    """Whether a traced model is a chain of layers of convolutions: images in, a value for each class out."""
    chain = all(len(stack.reads) < 2 and not stack.side for stack in model.stacks)
    operators = [operator for stack in model.stacks for operator in stack.operators]
    plain = all(isinstance(operator, _NETWORK_OPERATORS) for operator in operators)
    return model.source.startswith("traced from") and chain and plain and model.vocabulary is None


def _is_plain(operator: object) -> bool:
    match operator:
        case Attention():
            return operator.causal and not (operator.window or operator.cross or operator.alibi or operator.relative)
        case Norm():
            return operator.kind in ("rms", "layer")
        case Dropout():
            return operator.of == "hidden" or not operator.probability
    return True


def _family(inputs: Inputs) -> Iterator[Finding]:
    if proof_of(inputs.model) is None:
        yield found("model.family", value=inputs.model.family)


def _splits(inputs: Inputs) -> Iterator[Finding]:
    proof = proof_of(inputs.model) or _ALL
    for site in inputs.sites:
        experts = any(part.experts for held in site.held for part in held.parts) and site.row.part is not None
        proven, of = (proof.experts, "experts of family") if experts else (proof.splits, "family")
        for split in dict.fromkeys(role.split for role in site.row.roles.values()):
            if split not in proven:
                yield found(site.where, split=split, of=of, family=inputs.model.family)


def _stages(inputs: Inputs) -> Iterator[Finding]:
    proof = proof_of(inputs.model) or _ALL
    if len(inputs.plan.stages) > 1 and not proof.stages:
        yield found("stages", family=inputs.model.family)


def _attention_dropout(inputs: Inputs) -> Iterator[Finding]:
    proof = proof_of(inputs.model) or _ALL
    if inputs.model.attention_dropout and not proof.attention_dropout:
        yield found("model", model=inputs.model.name, probability=inputs.model.attention_dropout)


def _mixed(inputs: Inputs) -> Iterator[Finding]:
    proof = proof_of(inputs.model) or _ALL
    if inputs.recipe.precision.mixed and not proof.mixed:
        yield found("recipe.precision", family=inputs.model.family)


def _fused_heads(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        ways = site.ways("tp", "tp+sp")
        for part in (part for held in site.held for part in held.parts):
            few = [op.kv_heads for op in part.operators if isinstance(op, Attention) and op.kv_heads < ways]
            if few and fuses_heads(part.operators):
                yield found(
                    site.where,
                    heads=few[0],
                    ways=ways,
                    nearest=nearest_number(ways, divides(few[0])),
                )


def _distances(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.ways("tp", "tp+sp") > 1 and any(core.alibi for held in site.held for core in held.attentions):
            yield found(site.where)


def _dropped_between(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        parts = [part for held in site.held for part in held.parts] if site.ways("tp", "tp+sp") > 1 else []
        drops = (op for part in parts for op in between_cuts(part.operators) if isinstance(op, Dropout))
        inside = [op for op in drops if not op.path]
        if any(op.of == "hidden" and op.probability for op in inside):
            yield found(site.where)


def _statistics_twice(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites if inputs.model.batch_statistics else ():
        if site.row.recompute != "none":
            yield found(site.where, recompute=site.row.recompute)


def _own_core(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites if proof_of(inputs.model) is OWN else ():
        if site.row.singles_out_attention:
            yield found(site.where)


FAMILY_RULES: tuple[Rule, ...] = (
    Rule(
        "runtime-family",
        "runtime",
        _family,
        "the runtime does not run 'family: {value}' yet",
        f"take a model of the family {', '.join(FAMILIES)}, or trace your own decoder or network of convolutions",
    ),
    Rule(
        "runtime-family-split",
        "runtime",
        _splits,
        "the runtime does not run '{split}' with {of} '{family}' yet",
        "write 'dp' or 'tp'",
    ),
    Rule(
        "runtime-family-stages",
        "runtime",
        _stages,
        "the runtime does not run family '{family}' on several stages yet",
        "put all layers into one stage",
    ),
    Rule(
        "runtime-family-attention-dropout",
        "runtime",
        _attention_dropout,
        "model '{model}' drops attention ({probability:g}), which is not proven for its family",
        "give the model an attention dropout of 0",
    ),
    Rule(
        "runtime-family-precision",
        "runtime",
        _mixed,
        "the runtime is not proven with masters beside what it computes with for family '{family}' yet",
        "write 'compute: fp32', 'reduce: fp32' and 'master: null'",
    ),
    Rule(
        "runtime-fused-heads",
        "runtime",
        _fused_heads,
        "queries, keys and values come from one matrix, and its {heads} KV heads are fewer than {ways} tensor ranks",
        "write a tp of {nearest}, or 'dp'",
    ),
    Rule(
        "runtime-statistics-recompute",
        "runtime",
        _statistics_twice,
        "recompute '{recompute}' would add a micro-batch to the running statistics of its batch norms once more",
        "write 'recompute: none'",
    ),
    Rule(
        "runtime-own-core",
        "runtime",
        _own_core,
        "the runtime finds no core attention in a traced model to compute again or to keep",
        "write 'recompute: full'",
    ),
    Rule(
        "runtime-alibi",
        "runtime",
        _distances,
        "the runtime does not cut attention with biases by distance (ALiBi) over heads yet",
        "write 'dp'",
    ),
    Rule(
        "runtime-inner-dropout",
        "runtime",
        _dropped_between,
        "the runtime does not draw dropout that is called as a function between matrices that tp cuts yet",
        "write 'dp', or give that dropout a probability of 0",
    ),
)
