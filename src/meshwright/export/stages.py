"""How systems cut layers into stages, where they are not told each one."""

import re
from collections.abc import Sequence

from meshwright.errors import PlanError


def evenly(layers: int, stages: int, first: int = 0, last: int = 0) -> tuple[int, ...]:
    """Layers of each stage where the embedding counts as `first` layers and the head as `last`, as torchtitan cuts
    (`_generate_llm_fqn_per_model_part`), and DeepSpeed with 'type:transformer|embedding'. A rest goes to the first.

    >>> evenly(126, 8, 1, 1), evenly(70, 12, 1, 1)[:2], evenly(7, 3)
    ((15, 16, 16, 16, 16, 16, 16, 15), (5, 6), (3, 2, 2))
    """
    if stages == 1:
        return (layers,)
    least, more = divmod(layers + first + last, stages)
    counts = [least + (stage < more) for stage in range(stages)]
    counts[0], counts[-1] = counts[0] - first, counts[-1] - last
    if min(counts) < 0:
        raise PlanError(f"{layers} layers do not fill {stages} stages")
    return tuple(counts)


def ends_apart(layers: int, stages: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """Layers of each stage where the first and the last have so many, and the others share the rest evenly, as
    Megatron-LM's `--decoder-first-pipeline-num-layers` says. Raises PlanError where they do not divide.

    >>> ends_apart(61, 16, None, 1)[-3:]
    (4, 4, 1)
    """
    fixed = [count for count in (first, last) if count is not None]
    middle, rest = stages - len(fixed), layers - sum(fixed)
    if rest < 0 or min(fixed, default=0) < 0 or middle < 0:
        raise PlanError(f"the ends of {stages} stages have {sum(fixed)} layers, and the model has {layers}")
    if (middle and rest % middle) or (not middle and rest):
        raise PlanError(f"{rest} layers do not divide over the {middle} stages that are left of {stages}")
    even = [rest // middle] * middle if middle else []
    return (*([first] if first is not None else []), *even, *([last] if last is not None else []))


def write_layout(counts: Sequence[int]) -> str:
    """Megatron-LM's `--pipeline-model-parallel-layout`: E the embedding, t a layer, L the loss. Without the `*` that it
    may have, which a shell would read.

    >>> write_layout([1, 2, 0])
    'Et|tt|L'
    """
    stages = ["t" * count for count in counts]
    return "|".join(["E" + stages[0], *stages[1:-1], stages[-1] + "L"] if len(stages) > 1 else [f"E{stages[0]}L"])


_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([A-Za-z|])\*(\d+)")


def read_layout(layout: str) -> tuple[int, ...]:
    """The opposite, for all of its notation. Raises ValueError.

    >>> read_layout("Et*3|(tt|)*2,t|L")
    (3, 2, 2, 1, 0)
    """
    text = layout.replace(",", "").replace(" ", "")
    while found := _REPEATED.search(text):
        piece, times = found[1] if found[1] is not None else found[3], int(found[2] or found[4])
        if times > 1000:
            raise ValueError("a layout of stages like 'Ett|tt|ttL'")
        text = text[: found.start()] + piece * times + text[found.end() :]
    if not re.fullmatch(r"E?[tm|]*L?", text) or text.count("t") > 10000:
        raise ValueError("a layout of stages like 'Ett|tt|ttL'")
    return tuple(stage.count("t") for stage in text.split("|"))
