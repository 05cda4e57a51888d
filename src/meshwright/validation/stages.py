"""How many layers each stage of a measured run has, and how many stages a device holds.

* Megatron-Core counts the embedding and the head as layers where told so (account_for_embedding_in_pipeline_split,
  account_for_loss_in_pipeline_split), and DeepSpeed with `--pp-partition-method 'type:transformer|embedding'` (BLOOM),
  as the Zero Bubble paper does: the first and the last stage have a layer fewer. Megatron-Core takes no cut that does
  not divide, so that rows whose layers divide with these two alone must have been cut so (126 layers on 64 stages).
* NVIDIA's DeepSeek recipes (Megatron-Bridge, recipes/deepseek/deepseek_v3.py, map_pp_vp_to_layout) fill all stages but
  the last: 61 layers on 16 stages are 15 x 4 + 1.
* InternEvo (partition_uniform) gives what is left over to the last stages.
* nanotron (models/base.py, build_model) cuts where sums of costs pass equal parts of the whole: a layer costs
  4 hidden^2 + 3 hidden ffn, the head hidden x vocabulary.
"""

import re
from collections.abc import Callable
from itertools import accumulate

from meshwright.plan.words import Schedule
from meshwright.validation.frameworks import Framework
from meshwright.validation.rows import Measured
from meshwright.validation.unusable import Unusable

_SCHEDULES: tuple[tuple[str, Schedule], ...] = (
    (r"^ZB-1p", "zb-h1"),  # as much memory as 1F1B, and its backward in halves (Qi 2024, section 4)
    (r"[Ii]nterleaved|^1F1B-I", "interleaved"),
    (r"^1F1B|^$", "1f1b"),
)
UNSAID_VIRTUAL: tuple[tuple[str, str, str], ...] = (
    ("nemo_docs", r"^GPT3-175B\|4\|8\|1\|pretrain", "6"),
    ("nemo_docs", r"^LLAMA2-70B\|4\|4\|1\|pretrain", "20"),
    ("nemo_docs", r"^LLAMA3-70B\|4\|4\|2\|pretrain", "5"),
)
"""Tables of NeMo without a column of virtual stages: model, tp, pp, cp and task → what NeMo's next table has there."""


def virtual_of(row: Measured) -> int:
    """Stages on a device. Where a row says interleaved and no more, the fewest that divide a device's layers (two where
    these differ, as in torchtitan's looped schedules). Raises Unusable.
    """
    if row.count("pp") == 1:
        return 1
    key = "|".join(row.text(name) for name in ("model_name", "tp", "pp", "cp", "task"))
    sibling = next((n for name, pattern, n in UNSAID_VIRTUAL if name == row.source and re.search(pattern, key)), "")
    if said := row.text("vpp") or sibling:
        return int(said)
    if schedule_of(row, 1) != "interleaved":
        return 1
    layers, rest = divmod(row.count("n_layers"), row.count("pp"))
    return 2 if rest else next(size for size in range(2, layers + 1) if layers % size == 0)


def schedule_of(row: Measured, virtual: int) -> Schedule:
    """Raises Unusable where no plan can say the schedule."""
    text = row.text("schedule")
    found = next((schedule for pattern, schedule in _SCHEDULES if re.search(pattern, text)), None)
    if found is None:
        raise Unusable(f"schedule '{text}' is none that a plan can say")
    if row.count("pp") == 1:
        return "1f1b"
    return "interleaved" if virtual > 1 else found


def layers_of_stages(row: Measured, framework: Framework, stages: int) -> list[int] | None:
    """None: as evenly as can be."""
    layers = row.count("n_layers")
    if stages > 1 and framework.cut == "by-cost":
        return cut_by_cost(row, stages)
    return None if layers % stages == 0 else _UNEVEN[framework.cut](layers, stages)


def _last_more(layers: int, stages: int) -> list[int]:
    return [(layers + stage) // stages for stage in range(stages)]


def _last_less(layers: int, stages: int) -> list[int] | None:
    each = -(-layers // stages)
    left = layers - each * (stages - 1)
    return [each] * (stages - 1) + [left] if left >= 0 else None


def _ends_less(layers: int, stages: int) -> list[int] | None:
    each, rest = divmod(layers + 2, stages)
    return None if rest else [each - 1, *[each] * (stages - 2), each - 1]


_UNEVEN: dict[str, Callable[[int, int], list[int] | None]] = {
    "even": _ends_less,
    "last-more": _last_more,
    "last-less": _last_less,
}
"""What is done with layers that do not divide."""


def cut_by_cost(row: Measured, stages: int) -> list[int]:
    """Each layer goes to the stage whose part of the whole cost the layers before it have not passed."""
    hidden, layers = row.count("hidden"), row.count("n_layers")
    layer = 4 * hidden * hidden + 3 * hidden * row.count("ffn_hidden")
    whole = layers * layer + hidden * row.count("vocab")
    counts = [0] * stages
    stage = 0
    for passed in accumulate([layer] * layers):
        counts[stage] += 1
        stage += passed * stages > whole * (stage + 1)
    return counts
