"""Rules of our own runtime on a plan's `execution`: settings without effect in it, so that an estimate is of another
run.
"""

from collections.abc import Iterator

from meshwright.plan.rule import Finding, Inputs, Rule, found

_KERNELS = ("hf-eager", "hf-sdpa")
"""Kernel sets that a transformers model has by itself: the runtime runs the module as it is."""


def _kernels_of_another(inputs: Inputs) -> Iterator[Finding]:
    kernels = inputs.plan.execution.kernels
    if kernels not in _KERNELS:
        yield found("execution.kernels", kernels=kernels)


_NOT_BESIDE = {
    "tensor": "moves each exchange in one piece",
    "weights": "waits for each exchange before the next product",
}
"""Overlaps of a plan that the runtime has not → what it does."""


def _tensor_overlap(inputs: Inputs) -> Iterator[Finding]:
    for what, why in _NOT_BESIDE.items():
        if what in inputs.plan.execution.overlap:
            yield found("execution.overlap", what=what, why=why, left=_listed(inputs.plan.execution.overlap))


def _listed(overlap: tuple[str, ...]) -> str:
    return f"[{', '.join(each for each in overlap if each not in _NOT_BESIDE)}]"


def _own_launches(inputs: Inputs) -> Iterator[Finding]:
    if inputs.plan.execution.blocking:
        yield found("execution.blocking")


def _no_prefetch(inputs: Inputs) -> Iterator[Finding]:
    if inputs.plan.execution.prefetch == 0 and any(site.row.state == "zero3" for site in inputs.sites):
        yield found("execution.prefetch")


def _own_allocator(inputs: Inputs) -> Iterator[Finding]:
    if inputs.plan.execution.expandable_segments:
        yield found("execution.expandable_segments")


EXECUTION_RULES: tuple[Rule, ...] = (
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
        "runtime-segments",
        "runtime",
        _own_allocator,
        "expandable_segments have no effect in the runtime, which leaves the allocator as it is started",
        "write 'expandable_segments: false', and the estimate is of what runs",
        "warning",
    ),
    Rule(
        "runtime-blocking",
        "runtime",
        _own_launches,
        "blocking has no effect in the runtime, which launches kernels as its environment says",
        "write 'blocking: false', and the estimate is of what runs",
        "warning",
    ),
    Rule(
        "runtime-overlap",
        "runtime",
        _tensor_overlap,
        "overlap of '{what}' has no effect in the runtime, which {why}",
        "write 'overlap: {left}', and the estimate is of what runs",
        "warning",
    ),
)
