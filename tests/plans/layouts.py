"""Which rank stands where, from what each system documents: a second opinion, which shares nothing with `plan/groups`.

A layout is one formula, the rank of a coordinate; a process group is the list of the ranks that differ in some
coordinates alone. `oracles.py` says for each golden plan which layers use which groups for what.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Lists = frozenset[tuple[int, ...]]
Axes = tuple[str, ...]
Expected = dict[tuple[str, str], Lists]
"""(layer, purpose) → the lists of ranks that the layer needs for it."""


@dataclass(frozen=True)
class Grid:
    """The rank of a coordinate, and the size of each of its axes."""

    rank: Callable[..., int]
    sizes: dict[str, int]
    known: dict[object, Lists] = field(default_factory=dict)

    def lists(self, *over: str, **fixed: int) -> Lists:
        """The ranks that differ in `over` alone, slowest axis first; other axes at every value, or the fixed one."""
        key = (over, tuple(fixed.items()))
        if key not in self.known:
            others = {axis: range(size) for axis, size in self.sizes.items() if axis not in over}
            others |= {axis: range(value, value + 1) for axis, value in fixed.items()}
            inside = _settings({axis: range(self.sizes[axis]) for axis in over})
            self.known[key] = frozenset(
                tuple(self.rank(**there, **here) for here in inside) for there in _settings(others)
            )
        return self.known[key]


def _settings(ranges: dict[str, range]) -> list[dict[str, int]]:
    return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values())]


def megatron(first: int = 0, **n: int) -> Grid:
    """Megatron-Core's order tp-cp-ep-dp-pp for all but experts: tp fastest, pp slowest; `first` is its rank_offset.

    NVIDIA/Megatron-LM core/parallel_state.py, RankGenerator and initialize_model_parallel.
    """
    return Grid(lambda pp, dp, cp, tp: first + tp + n["tp"] * (cp + n["cp"] * (dp + n["dp"] * pp)), n)


def megatron_experts(**n: int) -> Grid:
    """Megatron-Core's experts: the same order over the same ranks with sizes of their own, tp-ep-dp-pp.

    NVIDIA/Megatron-LM core/parallel_state.py, expert_decoder_rank_generator; moe/README.md, MoE Parallel Folding.
    """
    return Grid(lambda pp, edp, ep, etp: etp + n["etp"] * (ep + n["ep"] * (edp + n["edp"] * pp)), n)


def llama3(**n: int) -> Grid:
    """The order [TP, CP, PP, DP]: tp fastest, dp slowest (The Llama 3 Herd of Models, figure 5 and section 3.3.2).

    Its example of 16 GPUs, 2 on each axis: GPU0 is in one TP group with GPU1, CP with GPU2, PP with GPU4, DP with GPU8.
    """
    return Grid(lambda dp, pp, cp, tp: tp + n["tp"] * (cp + n["cp"] * (pp + n["pp"] * dp)), n)


def torchtitan(**n: int) -> Grid:
    """The mesh (pp, dp_replicate, dp_shard, cp, tp), row-major (torchtitan parallel_dims.py, build_mesh)."""
    return Grid(
        lambda pp, dp_replicate, dp_shard, cp, tp: (
            tp + n["tp"] * (cp + n["cp"] * (dp_shard + n["dp_shard"] * (dp_replicate + n["dp_replicate"] * pp)))
        ),
        n,
    )


def deepspeed(**n: int) -> Grid:
    """The axes (pipe, data, model), row-major (DeepSpeed runtime/pipe/topology.py, PipeModelDataParallelTopology)."""
    return Grid(lambda pipe, data, model: (pipe * n["data"] + data) * n["model"] + model, n)


def hybrid_sharding(**n: int) -> Grid:
    """A DeviceMesh (replicate, shard), row-major: neighbours shard, nodes replicate (torch, HYBRID_SHARD)."""
    return Grid(lambda replicate, shard: replicate * n["shard"] + shard, n)


def usp(**n: int) -> Grid:
    """Ulysses on neighbours, the ring over what is `ulysses` apart.

    feifeibear/long-context-attention yunchang/globals.py, set_seq_parallel_pg with use_ulysses_low.
    """
    return Grid(lambda ring, ulysses: ring * n["ulysses"] + ulysses, n)


def use(layers: Iterable[str], grid: Grid, purposes: dict[str, Axes], **fixed: int) -> Expected:
    """What some layers need: for each purpose the lists over its axes, where these are more than one rank."""
    found = {purpose: grid.lists(*axes, **fixed) for purpose, axes in purposes.items()}
    wide = {purpose: lists for purpose, lists in found.items() if len(next(iter(lists))) > 1}
    return {(layer, purpose): lists for layer in layers for purpose, lists in wide.items()}


def dense(*sharded: str, equal: Axes = ("dp",), batch: Axes = ("dp",), **more: Axes) -> dict[str, Axes]:
    """Purposes of a layer whose parameters are equal over some axes and whose states are sharded over some of these."""
    replica = tuple(axis for axis in equal if axis not in sharded)
    return {"batch": batch, "gradient": equal, "shard": sharded, "replica": replica, **more}


def joined(*parts: Expected) -> Expected:
    """All together; a layer with parts of its own needs the lists of both."""
    whole: Expected = {}
    for part in parts:
        for key, lists in part.items():
            whole[key] = whole.get(key, frozenset()) | lists
    return whole


def layers(last: int, name: str = "decoder") -> list[str]:
    """'decoder.0' to 'decoder.<last>'."""
    return [f"{name}.{index}" for index in range(last + 1)]


def deal(names: Sequence[str], counts: Sequence[int]) -> list[list[str]]:
    """Layers dealt out to stages in order."""
    ends = list(itertools.accumulate(counts))
    assert ends[-1] == len(names), "the counts are not those of the layers"
    return [list(names[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def framed(stages: list[list[str]]) -> list[list[str]]:
    """The same stages, with the embedding before the first layer and the head after the last."""
    framed = [list(names) for names in stages]
    framed[0].insert(0, "embed")
    framed[-1].append("head")
    return framed
