"""The process groups of each golden plan, written down again from its source with the layouts of `layouts.py`."""

from collections.abc import Callable

from tests.plans.layouts import (
    Expected,
    Grid,
    Lists,
    deal,
    deepspeed,
    dense,
    framed,
    hybrid_sharding,
    joined,
    layers,
    llama3,
    megatron,
    megatron_experts,
    torchtitan,
    use,
    usp,
)

TP = {"tensor": ("tp",)}
EXPERTS = dense("edp", equal=("edp",), batch=("edp",), expert=("ep",))


def between(first: str, lists: Lists) -> Expected:
    """Ranks that pass activations on, noted at one layer."""
    return {(first, "pipeline"): lists}


def tied(owner: str, lists: Lists) -> Expected:
    """Ranks that sum copies of a parameter, noted at its owner."""
    return {(owner, "tied"): lists}


def llama_405b() -> Expected:
    grid = llama3(tp=8, cp=16, pp=16, dp=8)
    purposes = dense("dp", "cp", equal=("dp", "cp"), context=("cp",), **TP)
    chunks = [["embed"], *([name] for name in layers(125)), ["head"]]
    stages = [use(names, grid, purposes, pp=chunk % 16) for chunk, names in enumerate(chunks)]
    return joined(*stages, between("embed", grid.lists("pp")))


def deepseek_v3() -> Expected:
    grid, experts = megatron(tp=1, cp=1, dp=128, pp=16), megatron_experts(etp=1, ep=64, edp=2, pp=16)
    chunks = framed(deal(layers(60), [3] + 27 * [2] + 4 * [1]))
    chunks[-1].append("mtp")
    parts = []
    for chunk, names in enumerate(chunks):
        pp = min(chunk, 31 - chunk)  # down and back up
        parts += [use(names, grid, dense("dp"), pp=pp), use(routed(names), experts, EXPERTS, pp=pp)]
    return joined(*parts, between("embed", grid.lists("pp")))


def routed(names: list[str]) -> list[str]:
    """DeepSeek-V3's layers with routed experts: all but the first three."""
    return [name for name in names if name not in ("embed", "head", *layers(2))]


def deepseek_v3_in_megatron() -> Expected:
    grid, experts = megatron(tp=2, cp=1, dp=32, pp=16), megatron_experts(etp=1, ep=64, edp=1, pp=16)
    chunks = framed(deal(layers(60), 15 * [4] + [1]))
    chunks[-1].append("mtp")
    parts = []
    for pp, names in enumerate(chunks):
        parts += [use(names, grid, dense("dp", **TP), pp=pp), use(routed(names), experts, EXPERTS, pp=pp)]
    return joined(*parts, between("embed", grid.lists("pp")), tied("embed", ends(grid)))


def ends(grid: Grid) -> Lists:
    """The first and the last rank of every pipeline (Megatron's default_embedding_ranks; DeepSpeed's tied layers)."""
    axis = next(name for name in grid.sizes if name in ("pp", "pipe"))
    return frozenset((ranks[0], ranks[-1]) for ranks in grid.lists(axis))


def mixtral() -> Expected:
    grid, experts = megatron(tp=2, cp=1, dp=8, pp=8), megatron_experts(etp=1, ep=8, edp=2, pp=8)
    parts = []
    for pp, names in enumerate(framed(deal(layers(55), 8 * [7]))):
        parts += [use(names, grid, dense("dp", **TP), pp=pp)]
        parts += [use([name for name in names if name.startswith("decoder")], experts, EXPERTS, pp=pp)]
    return joined(*parts, between("embed", grid.lists("pp")))


def korthikanti() -> Expected:
    grid = megatron(tp=8, cp=1, dp=1, pp=8)
    chunks = framed(deal(layers(95), 24 * [4]))
    stages = [use(names, grid, dense(**TP), pp=chunk % 8) for chunk, names in enumerate(chunks)]
    return joined(*stages, between("embed", grid.lists("pp")), tied("embed", ends(grid)))


def bloom() -> Expected:
    grid = deepspeed(pipe=12, data=8, model=4)
    purposes = dense("data", equal=("data",), batch=("data",), tensor=("model",))
    chunks = framed(deal(layers(69), [5, *10 * [6], 5]))
    stages = [use(names, grid, purposes, pipe=pipe) for pipe, names in enumerate(chunks)]
    return joined(*stages, between("embed", grid.lists("pipe")), tied("embed", ends(grid)))


def hsdp() -> Expected:
    grid, both = hybrid_sharding(replicate=16, shard=8), ("replicate", "shard")
    return use(["embed", *layers(31), "head"], grid, dense("shard", equal=both, batch=both))


def internevo() -> Expected:
    grid, both = hybrid_sharding(replicate=128, shard=8), ("replicate", "shard")  # zero1=dict(size=8): within a node
    return use(["embed", *layers(31), "head"], grid, dense("shard", equal=both, batch=both))


def zbv() -> Expected:
    return between("embed", megatron(tp=1, cp=1, dp=1, pp=24).lists("pp"))


def t5() -> Expected:
    encoder, decoder = megatron(tp=4, cp=1, dp=4, pp=1), megatron(first=16, tp=8, cp=1, dp=4, pp=1)
    # Megatron pairs every decoder rank with an encoder rank, in the order of both (generator_wrapper, 'pp'). Ours is
    # one set for all pairs of an encoder rank. The embedding, cut over 4 and over 8, meets on the same ranks.
    pairs = [(rank // 2, 16 + rank) for rank in range(32)]
    sets = frozenset((one, *(other for first, other in pairs if first == one)) for one in range(16))
    return joined(
        use(["encoder_embed", *layers(23, "encoder"), "encoder_norm"], encoder, dense("dp", **TP)),
        use(["decoder_embed", *layers(23), "head"], decoder, dense("dp", **TP)),
        between("decoder_embed", sets),
        tied("encoder_embed", sets),
    )


def whisper() -> Expected:
    encoder, decoder = megatron(tp=1, cp=1, dp=12, pp=1), megatron(first=12, tp=1, cp=1, dp=4, pp=1)
    return joined(
        use(["encoder_embed", *layers(31, "encoder"), "encoder_norm"], encoder, dense("dp")),
        use(["decoder_embed", *layers(31), "head"], decoder, dense("dp")),
        between("decoder_embed", frozenset((3 * rank, 3 * rank + 1, 3 * rank + 2, 12 + rank) for rank in range(4))),
    )


def qwen2_vl() -> Expected:
    vision, language = megatron(tp=1, cp=1, dp=4, pp=1), megatron(first=4, tp=4, cp=1, dp=3, pp=1)
    return joined(
        use(["vision_embed", *layers(31, "vision"), "vision_norm", "merger"], vision, dense("dp")),
        use(["embed", *layers(27), "head"], language, dense("dp", **TP)),
        between("embed", frozenset([tuple(range(16))])),
    )


def gpt2_tied() -> Expected:
    grid = megatron(tp=1, cp=1, dp=2, pp=4)
    stages = [use(names, grid, dense(), pp=pp) for pp, names in enumerate(framed(deal(layers(47), 4 * [12])))]
    return joined(*stages, between("embed", grid.lists("pp")), tied("embed", ends(grid)))


def unlike_pair() -> Expected:
    a100, v100 = megatron(tp=8, cp=1, dp=2, pp=1), megatron(first=16, tp=8, cp=1, dp=4, pp=1)
    halves = deal(layers(39), [22, 18])
    sets = frozenset((8 * dp + tp, 16 + 16 * dp + tp, 24 + 16 * dp + tp) for dp in range(2) for tp in range(8))
    return joined(
        use(["embed", *halves[0]], a100, dense("dp", **TP)),
        use([*halves[1], "head"], v100, dense("dp", **TP)),
        between("decoder.22", sets),
    )


def zero_offload() -> Expected:
    purposes = dense("data", equal=("data",), batch=("data",), tensor=("model",))
    return use(["embed", *layers(68), "head"], deepspeed(pipe=1, data=2, model=8), purposes)


def lora() -> Expected:
    return use(["embed", *layers(79), "head"], megatron(tp=4, cp=1, dp=2, pp=1), dense(**TP))


def ulysses_ring() -> Expected:
    both = ("ring", "ulysses")
    purposes = dense(*both, equal=both, batch=(), context=("ring",), sequence=("ulysses",))
    return use(["embed", *layers(31), "head"], usp(ring=2, ulysses=8), purposes)


def odd_world() -> Expected:
    grid = megatron(tp=3, cp=1, dp=2, pp=2)
    chunks = framed(deal(layers(29), [15, 15]))
    stages = [use(names, grid, dense("dp", **TP), pp=pp) for pp, names in enumerate(chunks)]
    return joined(*stages, between("embed", grid.lists("pp")), tied("embed", ends(grid)))


def resnet() -> Expected:
    blocks = [name for stage, last in enumerate((2, 3, 5, 2)) for name in layers(last, f"stage{stage}")]
    return use(["stem", *blocks, "head"], megatron(tp=1, cp=1, dp=8, pp=1), dense())


def three_neighbours() -> Expected:
    grid = Grid(lambda node, half, gpu: 8 * node + 4 * half + gpu, {"node": 2, "half": 2, "gpu": 4})
    everything, pair = ("node", "half", "gpu"), ("node", "half")
    wide = dense("node", equal=("node",), batch=("node",), tensor=("half", "gpu"))
    middle = dense(*pair, equal=pair, batch=pair, tensor=("gpu",))
    long = dense(*everything, equal=everything, batch=("node",), context=("half",), sequence=("gpu",))
    thirds = deal(layers(31), [10, 10, 12])
    return joined(
        use(["embed", *thirds[0]], grid, wide), use(thirds[1], grid, middle), use([*thirds[2], "head"], grid, long)
    )


def torchtitan_405b() -> Expected:
    grid = torchtitan(pp=8, dp_replicate=1, dp_shard=2, cp=4, tp=8)
    samples = ("dp_replicate", "dp_shard")
    purposes = dense("dp_shard", "cp", equal=(*samples, "cp"), batch=samples, context=("cp",), **TP) | {"replica": ()}
    # generate_split_points: 126 // 8 layers in the first stage, one more in each of the next 126 % 8 stages.
    chunks = framed(deal(layers(125), [15, *6 * [16], 15]))
    stages = [use(names, grid, purposes, pp=pp) for pp, names in enumerate(chunks)]
    return joined(*stages, between("embed", grid.lists("pp")))


ORACLES: dict[str, Callable[[], Expected]] = {
    "llama-3.1-405b-128k": llama_405b,
    "deepseek-v3-2048-h800": deepseek_v3,
    "mixtral-8x22b-expert-tp": mixtral,
    "korthikanti-175b-sp": korthikanti,
    "korthikanti-175b": korthikanti,
    "bloom-176b": bloom,
    "hsdp-llama-2-7b": hsdp,
    "internevo-7b-zero1-8": internevo,
    "zbv-gpt-14.6b": zbv,
    "t5-11b-two-meshes": t5,
    "whisper-two-meshes": whisper,
    "qwen2-vl-7b-own-encoder": qwen2_vl,
    "gpt2-xl-tied": gpt2_tied,
    "deepseek-v3-61-on-16": deepseek_v3_in_megatron,
    "unlike-a100-v100": unlike_pair,
    "zero-offload-70b": zero_offload,
    "lora-llama-2-70b": lora,
    "usp-llama-3-8b": ulysses_ring,
    "odd-world-tp3": odd_world,
    "resnet-50-dp": resnet,
    "three-neighbours": three_neighbours,
    "torchtitan-405b-128k": torchtitan_405b,
}
"""The golden plans, in the order of the README."""
