"""Rules about what a plan is for: it agrees with its model, cluster and recipe, and these with each other."""

from collections.abc import Callable, Iterator

from meshwright.errors import nearest
from meshwright.model.operators import Linear
from meshwright.model.spans import parse_span
from meshwright.plan.numbers import listed
from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.sites import shared_indices
from meshwright.recipe.spec import BYTES

_COMPUTE = ("fp64", "fp32", "bf16", "fp16")


def _other(*inputs_named: str) -> Callable[[Inputs], Iterator[Finding]]:
    """A check that the fingerprints which the plan records are those of what it is checked against."""

    def check(inputs: Inputs) -> Iterator[Finding]:
        for what in inputs_named:
            recorded, actual = getattr(inputs.plan, what).fingerprint, getattr(inputs, what).fingerprint
            if recorded not in (None, actual):
                yield found(f"{what}.fingerprint", what=what, recorded=recorded, actual=actual)

    return check


def _other_batch(inputs: Inputs) -> Iterator[Finding]:
    if inputs.plan.recipe.global_batch != inputs.recipe.global_batch:
        yield found("recipe.global_batch", said=inputs.plan.recipe.global_batch, asked=inputs.recipe.global_batch)


def _other_sequence(inputs: Inputs) -> Iterator[Finding]:
    for stream, fixed in inputs.model.streams.items():
        said, asked = (_own_length(source.sequence, stream) for source in (inputs.plan.recipe, inputs.recipe))
        if fixed.length is None and asked is not None and said != asked:
            yield found("recipe.sequence", stream=stream, said=said or "none", asked=asked)


def _own_length(sequence: int | dict[str, int], stream: str) -> int | None:
    return sequence.get(stream) if isinstance(sequence, dict) else sequence


def _other_micro_batches(inputs: Inputs) -> Iterator[Finding]:
    if inputs.recipe.micro_batches not in (None, inputs.plan.micro_batches):
        yield found("micro_batches", said=inputs.plan.micro_batches, asked=inputs.recipe.micro_batches)


def _free_batch_statistics(inputs: Inputs) -> Iterator[Finding]:
    if inputs.model.batch_statistics and inputs.recipe.micro_batches is None:
        yield found("recipe.micro_batches", model=inputs.model.name, count=inputs.plan.micro_batches)


def _stream_without_length(inputs: Inputs) -> Iterator[Finding]:
    used = {stack.stream for stack in inputs.model.stacks}
    crossed = {op.cross for stack in inputs.model.stacks for op in stack.operators if op.op == "attention" and op.cross}
    for stream in sorted(used | crossed):
        if inputs.length(stream) is None:
            yield found("recipe.sequence", stream=stream, model=inputs.model.name)


def _unknown_stream(inputs: Inputs) -> Iterator[Finding]:
    known = inputs.model.streams
    for stream in inputs.recipe.sequence if isinstance(inputs.recipe.sequence, dict) else ():
        if stream not in known:
            close = nearest(stream, known, 1) or list(known)[:1]
            fix = f"write '{close[0]}'" if close else "remove it"
            yield found("recipe.sequence", stream=stream, model=inputs.model.name, fix=fix)


def _too_long(inputs: Inputs) -> Iterator[Finding]:
    for stream, known in inputs.model.streams.items():
        asked = inputs.recipe.length(stream, known.length)
        if known.limit is not None and asked is not None and asked > known.limit:
            yield found("recipe.sequence", stream=stream, asked=asked, limit=known.limit, model=inputs.model.name)


def _length_in_vain(inputs: Inputs) -> Iterator[Finding]:
    asked = inputs.recipe.sequence if isinstance(inputs.recipe.sequence, dict) else {}
    for stream, fixed in inputs.model.streams.items():
        if fixed.length is not None and asked.get(stream, fixed.length) != fixed.length:
            yield found("recipe.sequence", stream=stream, asked=asked[stream], fixed=fixed.length)


def _one_length_for_streams(inputs: Inputs) -> Iterator[Finding]:
    sequence, streams = inputs.recipe.sequence, [name for name, one in inputs.model.streams.items() if not one.length]
    if isinstance(sequence, int) and len(streams) > 1:
        yield found(
            "recipe.sequence",
            model=inputs.model.name,
            streams=listed(f"'{name}'" for name in streams),
            length=sequence,
            written=", ".join(f"{name}: {sequence}" for name in streams),
            typed=",".join(f"{name}={sequence}" for name in streams),
        )


def _dtypes_of_devices(inputs: Inputs) -> Iterator[tuple[str, list[str]]]:
    """Each kind of device that works, and its dtypes."""
    cluster, told = inputs.cluster, set[str]()
    for pool, start in zip(cluster.pools, cluster.starts, strict=True):
        end = start + pool.size
        works = any(start <= rank < end for group in inputs.plan.groups.values() for rank in group.devices)
        if works and pool.device not in told:
            told.add(pool.device)
            yield pool.device, [str(dtype) for dtype in cluster.devices[pool.device].peak]


def _compute_that_no_device_has(inputs: Inputs) -> Iterator[Finding]:
    wanted, devices = inputs.recipe.precision.compute, list(_dtypes_of_devices(inputs))
    everywhere = [dtype for dtype in _COMPUTE if all(dtype in dtypes for _, dtypes in devices)]
    near = _nearest_dtype(wanted, everywhere) if everywhere else None
    for device, dtypes in devices:
        if wanted not in dtypes:
            fix = f"compute in {near}" if near else f"take another device than '{device}'"
            known = listed(dtypes or ["none"])
            yield found("recipe.precision.compute", dtype=wanted, device=device, known=known, fix=fix)


def _nearest_dtype(wanted: str, known: list[str]) -> str:
    """The one nearest in bytes."""
    return min(known, key=lambda dtype: abs(BYTES[dtype] - BYTES[wanted]))


def _matmul_that_no_device_has(inputs: Inputs) -> Iterator[Finding]:
    wanted, devices = inputs.recipe.precision.matmul, list(_dtypes_of_devices(inputs))
    eight = all("fp8" in dtypes for _, dtypes in devices)
    for device, dtypes in devices:
        if wanted is not None and wanted not in dtypes:
            fix = "write 'fp8'" if eight else "remove it"
            known = listed(dtypes or ["none"])
            yield found("recipe.precision.matmul", dtype=wanted, device=device, known=known, fix=fix)


def _scaling_in_vain(inputs: Inputs) -> Iterator[Finding]:
    precision = inputs.recipe.precision
    if precision.matmul is None and precision.scaling != "tensors":
        yield found("recipe.precision.scaling", scaling=precision.scaling, compute=precision.compute)


def _frozen_that_is_not_there(inputs: Inputs) -> Iterator[Finding]:
    spans = [stack.span for stack in inputs.model.stacks]
    for number, frozen in enumerate(inputs.recipe.trainable.frozen):
        try:
            known = any(shared_indices(frozen, span) for span in spans)
        except ValueError:
            known = False
        if not known:
            close = (nearest(frozen, spans, 1) or spans)[0]
            yield found(f"recipe.trainable.frozen.{number}", span=frozen, model=inputs.model.name, nearest=close)


def _nothing_learns(inputs: Inputs) -> Iterator[Finding]:
    trainable = inputs.recipe.trainable
    frozen = {name for span in trainable.frozen for name in _names(inputs, span)}
    learning = [layer.name for layer in inputs.model.layers if layer.parameters and layer.name not in frozen]
    if trainable.frozen and trainable.lora is None and not learning:
        yield found("recipe.trainable.frozen", model=inputs.model.name, last=inputs.model.layers[-1].name)


def _names(inputs: Inputs, span: str) -> list[str]:
    try:
        base, numbers = parse_span(span)
    except ValueError:
        return []
    if numbers is None:
        return [base]
    return [layer.name for layer in inputs.model.layers if layer.index in numbers and layer.name.startswith(f"{base}.")]


def _adapter_without_target(inputs: Inputs) -> Iterator[Finding]:
    lora = inputs.recipe.trainable.lora
    paths = [op.path for stack in inputs.model.stacks for op in stack.operators if isinstance(op, Linear) and op.path]
    ends = dict.fromkeys(path.rpartition(".")[2] for path in paths)
    for target in lora.targets if lora else ():
        if not any(path == target or path.endswith(f".{target}") for path in paths):
            close = nearest(target, ends, 1) or list(ends)[:1]
            fix = f"write '{close[0]}'" if close else "remove it"
            yield found("recipe.trainable.lora.targets", target=target, model=inputs.model.name, fix=fix)


INPUT_RULES: tuple[Rule, ...] = (
    Rule(
        "model-agrees",
        "meaning",
        _other("model"),
        "the plan was made for a model with fingerprint {recorded}, and this one has {actual}",
        "give the model that it was made for, or write {actual}",
    ),
    Rule(
        "made-for-another",
        "meaning",
        _other("cluster", "recipe"),
        "the plan was made for another {what} (fingerprint {recorded}); "
        "what is said here holds for this one ({actual})",
        "give the {what} that it was made for, or write {actual}",
        "warning",
    ),
    Rule(
        "batch-agrees",
        "meaning",
        _other_batch,
        "the plan says a global batch of {said}, and the recipe {asked}",
        "write {asked}",
    ),
    Rule(
        "sequence-agrees",
        "meaning",
        _other_sequence,
        "the plan says {said} positions of stream '{stream}', and the recipe {asked}",
        "write {asked}",
    ),
    Rule(
        "sequence-is-in-reach",
        "meaning",
        _too_long,
        "{asked} positions of stream '{stream}' are more than the {limit} that model '{model}' has places for",
        "use a sequence of {limit} or less",
    ),
    Rule(
        "micro-batches-agree",
        "meaning",
        _other_micro_batches,
        "the recipe fixes {asked} micro-batches, and the plan has {said}",
        "write {asked}",
    ),
    Rule(
        "batch-statistics-are-fixed",
        "meaning",
        _free_batch_statistics,
        "model '{model}' takes statistics over a micro-batch, and the recipe does not fix the number of micro-batches",
        "write 'micro_batches: {count}' in the recipe",
    ),
    Rule(
        "stream-has-a-length",
        "meaning",
        _stream_without_length,
        "neither model '{model}' nor the recipe says how long stream '{stream}' is",
        "add '{stream}' to the recipe's sequence",
    ),
    Rule(
        "stream-is-known",
        "meaning",
        _unknown_stream,
        "model '{model}' has no stream '{stream}'",
        "{fix}",
    ),
    Rule(
        "length-has-an-effect",
        "meaning",
        _length_in_vain,
        "the length {asked} of stream '{stream}' has no effect: the model fixes it at {fixed}",
        "write {fixed}",
        "warning",
    ),
    Rule(
        "streams-have-their-own-lengths",
        "meaning",
        _one_length_for_streams,
        "streams {streams} of model '{model}' are all taken to be {length} positions long",
        "say each of them: 'sequence: {{{written}}}' in the recipe, or '--seq {typed}'",
        "warning",
    ),
    Rule(
        "devices-have-the-dtype",
        "meaning",
        _compute_that_no_device_has,
        "device '{device}' does not compute in {dtype}; it has {known}",
        "{fix}",
    ),
    Rule(
        "devices-have-the-matmul",
        "meaning",
        _matmul_that_no_device_has,
        "device '{device}' does not multiply in {dtype}; it has {known}",
        "{fix}",
    ),
    Rule(
        "scaling-has-an-effect",
        "meaning",
        _scaling_in_vain,
        "scales of {scaling} have no effect: products are in {compute}, which is not scaled",
        "remove it, or write 'matmul: fp8'",
        "warning",
    ),
    Rule(
        "frozen-is-known",
        "meaning",
        _frozen_that_is_not_there,
        "model '{model}' has no layers '{span}' to freeze",
        "write '{nearest}'",
    ),
    Rule(
        "something-learns",
        "meaning",
        _nothing_learns,
        "all of model '{model}' is frozen, and there are no adapters",
        "leave '{last}' out of what is frozen",
    ),
    Rule(
        "adapter-has-a-target",
        "meaning",
        _adapter_without_target,
        "model '{model}' has no linear operator whose path ends in '{target}'",
        "{fix}",
    ),
)
