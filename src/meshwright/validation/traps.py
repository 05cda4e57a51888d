"""Rows that contradict themselves, their source or a sibling: corrected or set aside, each with the reason.

None is here for how far a prediction is off. Where a row's `dp` contradicts its devices (BigScience, 80 layers of
13,824 on 320 devices), what the other degrees leave of the devices counts: no column of `dp` is read.
"""

import re
from dataclasses import dataclass, field

from meshwright.validation.rows import Measured


@dataclass(frozen=True)
class Trap:
    """Rows of a source whose columns match, and what is done with them."""

    source: str
    columns: dict[str, str]
    """Column → a pattern in it."""
    reason: str
    changes: dict[str, str] = field(default_factory=dict)
    """What the columns should say; empty: the rows are set aside."""

    def holds(self, row: Measured) -> bool:
        """Whether the row is one of these."""
        return row.source == self.source and all(
            re.search(pattern, row.text(column)) for column, pattern in self.columns.items()
        )


TRAPS: tuple[Trap, ...] = (
    Trap(
        "vtrain_single",
        {"recompute": r"^full"},
        "recompute: none, since with it layers of 2,048 and 8 samples would run 210 TFLOP/s with softmax and norms, "
        "and without 157; full is in the configurations of its simulator, which name no run",
        {"recompute": "none"},
    ),
    Trap(
        "dgxc_bench",
        {"model_name": r"Nemotron4-340B", "notes": r"v25\.04\.02", "vpp": r"^1$"},
        "vpp: 12, as its own nemotron4-340b-synth.yaml and the table of v25.05.05 have it, where the README prints 1",
        {"vpp": "12"},
    ),
    Trap(
        "dgxc_bench",
        {"model_name": r"Maverick", "pp": r"^1$", "vpp": r"^12$"},
        "12 virtual stages without a pipeline: the layout of the table cannot be the one that was run",
    ),
    Trap(
        "fms_fsdp",
        {"model_name": r"-(34B|70B)$", "gpu": r"A100"},
        "recompute: full, since HFU is 1.345 times MFU, where the table says every n-th block",
        {"recompute": "full"},
    ),
    Trap(
        "mlperf",
        {"model_name": r"^GPT3", "pp": r"^8$", "vpp": r"^$"},
        "the degree of interleaving is not said, and submissions of the same tp 4 and pp 8 have 4, 6 and 12",
    ),
)
