"""What layers of a measured run do that a uniform plan does not say: which are recomputed, which rest on the host."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from meshwright.model.spans import format_spans, span_names
from meshwright.plan.spec import Offload, Recompute, Repeat, Row, Save
from meshwright.validation.rows import Measured
from meshwright.validation.unusable import Unusable

_RECOMPUTES: tuple[tuple[str, Recompute], ...] = (
    (r"^$|^none", "none"),
    (r"norm, act", Repeat(repeat=("norm", "activation"))),
    (r"norm, moe", Repeat(repeat=("norm",))),
    (r"mla_up_proj", Repeat(repeat=("up-projection",))),
    (r"save_qkv_proj", Save(save=("qkv",))),
    (r"SAC", Save(save=("half-matmul", "attention", "collective"))),
    (r"^full|n-th block", "full"),
    (r"^selective", "selective"),
)
"""What a row's column contains → what each layer does; the first that matches."""
_REPEATED_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = ((r"norm, moe", ("mlp", "experts")),)
"""What a row's column contains → the parts of each layer that are recomputed as a whole."""


def recompute_of(row: Measured) -> Recompute:
    """What its layers do, or those of them that do anything. Raises Unusable."""
    text = row.text("recompute")
    if row.source == "torchtitan" and text.startswith("selective"):
        text = "SAC"
    found = next((recompute for pattern, recompute in _RECOMPUTES if re.search(pattern, text)), None)
    if found is None:
        raise Unusable(f"recompute '{text}' is none that a plan can say")
    return found


def recomputed_share(row: Measured) -> float:
    """Of its layers: from the row's figures where it says 'every n-th block', since a forward done again adds a third
    to a layer's FLOPs: HFU / MFU = 1 + share / 3. Raises Unusable where it has none.
    """
    if "n-th block" not in row.text("recompute"):
        return 1.0
    done, useful = row.number("measured_hfu_pct"), row.number("measured_mfu_pct")
    if not done or not useful:
        raise Unusable("which share of the layers is recomputed is not said")
    return min(1.0, 3 * (done / useful - 1))


def _recomputed(row: Measured, name: str) -> bool:
    """Whether a layer is among those that are recomputed: the first so many, or a share of them evenly spread."""
    if (index := _index(name)) is None:
        return False
    if first := re.search(r"\((\d+) layers, block\)", row.text("recompute")):
        return index < int(first[1])
    share = recomputed_share(row)
    return int((index + 1) * share) > int(index * share)


def _offloaded(row: Measured, name: str, part: str | None) -> bool:
    """Whether activations of a layer, or of a part of it, rest on the host: of the first so many, of all, or of
    experts.
    """
    text, index = row.text("offload"), _index(name)
    if index is None or not text:
        return False
    if text.endswith("experts"):
        return part == "experts"
    first = re.search(r"(\d+) layers", text)
    return index < int(first[1]) if first else True


def _index(name: str) -> int | None:
    """The number of a layer among those that repeat; none of others."""
    last = name.rpartition(".")[2]
    return int(last) if last.isdigit() else None


def split_rows(rows: Iterable[Row], measured: Measured, offload: Offload) -> Iterator[Row]:
    """Rows of layers that are recomputed or offloaded, and of those that are not; and of parts that are recomputed as
    a whole.
    """
    given = list(rows)
    own = {row.part for row in given}
    parts = next((found for text, found in _REPEATED_PARTS if re.search(text, measured.text("recompute"))), ())
    for row in given:
        for placed in _runs(row, measured, offload):
            if placed.recompute != "none" and row.part in parts:
                yield placed.model_copy(update={"recompute": "full"})
                continue
            yield placed
            for part in parts if placed.recompute != "none" and row.part is None else ():
                if part not in own:
                    yield placed.model_copy(update={"part": part, "recompute": "full"})


def _runs(row: Row, measured: Measured, offload: Offload) -> Iterator[Row]:
    """A row for each run of layers that do the same."""

    def asked(name: str) -> tuple[bool, bool]:
        again = row.recompute != "none" and _recomputed(measured, name)
        return again, _offloaded(measured, name, row.part)

    for (again, away), names in groupby(span_names(row.span), asked):
        changes = {
            "recompute": row.recompute if again else "none",
            "offload": offload.model_copy(update={"activations": "cpu"}) if away else offload,
        }
        for span in format_spans(names):
            yield row.model_copy(update={"span": span} | changes)
