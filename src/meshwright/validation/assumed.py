"""What is taken where a source does not say it, or where no plan can say what it says: one table.

Rows of grade A have such assumptions too, of things that no table prints.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.validation.machines import network_is_said
from meshwright.validation.rows import Measured
from meshwright.validation.said import as_run, known_of
from meshwright.validation.stages import UNSAID_VIRTUAL


@dataclass(frozen=True)
class Assumption:
    """Something that is taken for rows of which `holds` is true."""

    about: str
    """A column, or what has none."""
    taken: str
    holds: Callable[[Measured], bool]


def _empty(column: str) -> Callable[[Measured], bool]:
    return lambda row: not row.text(column)


def _says(column: str, pattern: str) -> Callable[[Measured], bool]:
    return lambda row: re.search(pattern, row.text(column)) is not None


def _copies(row: Measured) -> bool:
    return row.count("n_gpus") > row.count("tp") * row.count("pp")


def _virtual(row: Measured) -> str:
    """How the stages of a device are told where a row of a pipeline does not: by what it is."""
    if row.text("vpp") or row.count("pp") == 1:
        return ""
    if any(source == row.source and row.text("task") == "pretrain" for source, _, _ in UNSAID_VIRTUAL):
        return "sibling"
    return "fewest" if re.search(r"[Ii]nterleaved", row.text("schedule")) else "one"


def recompute_unknown(row: Measured) -> bool:
    """Whether the source does not say what is recomputed; none is taken then, and full recompute shown beside it."""
    known = as_run(row).text("recompute")
    return not known or (known == row.text("recompute") and "recompute not mentioned" in row.text("notes"))


ASSUMED: tuple[Assumption, ...] = (
    Assumption("recompute", "nothing is recomputed", recompute_unknown),
    Assumption("recompute", "the layers that are recomputed lie evenly spread", _says("recompute", "n-th block")),
    Assumption("vocab", "32,000 words, since its script has a SentencePiece model", _empty("vocab")),
    Assumption("tied_emb", "the head has a table of its own", _empty("tied_emb")),
    Assumption(
        "precision",
        "fp16, as the repository's script has it",
        lambda row: row.source == "zero_bubble" and not row.text("precision"),
    ),
    Assumption("attention_impl", "the framework's usual kernels", _empty("attention_impl")),
    Assumption(
        "micro_batch",
        "that of the same model in Narayanan 2021, table 1",
        lambda row: row.source == "megatron_readme_jan2021",
    ),
    Assumption(
        "micro_batch",
        "as many micro-batches as pipeline ranks, torchtitan's default until 2025",
        lambda row: row.source == "torchtitan" and not row.text("micro_batch"),
    ),
    Assumption("vpp", "that of the same layout in NeMo's next table", lambda row: _virtual(row) == "sibling"),
    Assumption("vpp", "the fewest above 1 that divide a device's layers, or 2", lambda row: _virtual(row) == "fewest"),
    Assumption("vpp", "1", lambda row: _virtual(row) == "one"),
    Assumption(
        "zero_stage_or_sharding",
        "nothing is sharded",
        lambda row: not row.text("zero_stage_or_sharding") and row.source != "hagemann2023" and _copies(row),
    ),
    Assumption(
        "zero_stage_or_sharding",
        "ZeRO-1, of the paper's text",
        lambda row: row.source == "hagemann2023",
    ),
    Assumption("zero_stage_or_sharding", "each node shards for itself", _says("zero_stage_or_sharding", "HSDP")),
    Assumption("sp", "on where tp is more than 1, NVIDIA's usual", _says("derived", r"sp\(=tp>1\)")),
    Assumption("gpu", "80 GB of memory", _says("gpu", r"^A100-SXM$")),
    Assumption("inter_node_link", "the device's usual cards", lambda row: not network_is_said(row)),
    Assumption("experts", "each gets as many positions", _says("n_experts", ".")),
    Assumption(
        "experts",
        "not cut by tp, as in all of NVIDIA's recipes of that library",
        lambda row: row.source in ("megatron_bridge", "megatron_moe_zoo") and bool(row.text("n_experts")),
    ),
    Assumption(
        "experts",
        "cut by tp like the rest, Megatron-Core's default",
        lambda row: row.source == "dgxc_bench" and bool(row.text("n_experts")) and "ETP=" not in row.text("notes"),
    ),
    Assumption(
        "model",
        "without the layer that predicts two positions ahead",
        lambda row: "DeepSeek" in row.text("model_name") and "w/o MTP" not in row.text("model_name"),
    ),
    Assumption("model", "a Mixtral of Grok's shape", _says("model_name", r"^Grok")),
    Assumption("model", "a Qwen 2 with experts in every second layer", _says("model_name", "Maverick")),
    Assumption("framework", "kernels as torch.compile makes them", _says("framework", "MaxText")),
    Assumption("seq_len", "one sample fills it; packed ones attend less", _says("task", r"^(SFT|LoRA)$")),
)
"""Later lines do not replace earlier ones."""


def assumptions_of(row: Measured) -> tuple[str, ...]:
    """What was taken for a row, as 'column: what'."""
    corrections = tuple(each.reason for each in known_of(row) if each.changes)
    right = as_run(row)
    return corrections + tuple(f"{each.about}: {each.taken}" for each in ASSUMED if each.holds(right))


def with_full_recompute(row: Measured) -> Measured:
    """The same row, as if it said that all is recomputed."""
    return replace(row, fields=row.fields | {"recompute": "full"})
