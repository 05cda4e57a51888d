"""What the sources' figures of memory are compared with, by one table."""

import re
from typing import Literal

Figure = Literal["allocated", "reserved", "device"]
"""Of `cost.footprint.Footprint`."""

FIGURES: tuple[tuple[str, Figure], ...] = (
    (r"nvidia-smi", "device"),
    (r"reserved", "reserved"),
    (r"allocated", "allocated"),
    (r"torch peak", "allocated"),  # nanotron logs torch.cuda.max_memory_allocated
    (r"NeMo peak_memory_usage", "allocated"),  # torch.cuda.max_memory_allocated
    (r"max_memory_usage", "allocated"),  # NVIDIA's logs of MLPerf; what it is of is not said there
    (r"peak GPU memory GB \(table\)", "allocated"),  # Qi 2023, table 4: "peak memory"; of what is not said
    (r"GB \(measurement method not stated\)", "reserved"),  # InternEvo: the one in the middle
    (r"GB max_memory", "device"),  # Primus logs what rocm-smi shows
)
"""What the column `mem_kind` contains → our figure; the first that matches."""


def figure_of(kind: str) -> Figure | None:
    """The figure that a kind is compared with; none where the table has no entry.

    >>> figure_of("GiB reserved, max over ranks"), figure_of("by a rule of thumb")
    ('reserved', None)
    """
    return next((figure for pattern, figure in FIGURES if re.search(pattern, kind)), None)
