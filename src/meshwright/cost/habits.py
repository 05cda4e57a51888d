"""What transformers' code of each family does otherwise than Llama's, as far as it changes the bytes that are kept.

Read off transformers 5.24 (`modeling_*.py`, 2026) and held against autograd by `tests/cost/test_saved.py`.
"""

from typing import Literal, NamedTuple


class Rms(NamedTuple):
    """Tensors of the norm's size that an RMS norm keeps, beside a deviation for each position."""

    wide: int
    """In float32."""
    narrow: int
    """In the compute dtype."""
    keeps_input: bool = False
    """True where it keeps its input in the compute dtype too."""
    keeps_gain: bool = False
    """True where it keeps a gain in float32 that it has made of the parameter."""


CAST_THEN_WEIGHED = Rms(wide=1, narrow=1)
"""weight · (x32 / rms).to(dtype): the input in float32, and what the weight multiplies."""
WEIGHED_THEN_CAST = Rms(wide=2, narrow=0)
"""(weight · x32 / rms).to(dtype)."""
ONE_PLUS_WEIGHT = Rms(wide=2, narrow=0, keeps_gain=True)
"""(x32 / rms · (1 + weight32)).to(dtype): Gemma."""
DIVIDED_AS_IT_IS = Rms(wide=1, narrow=1, keeps_input=True)
"""Mean of squares in float32, but the input itself is divided: T5."""


class Habits(NamedTuple):
    """Of one family's code; the defaults are Llama's."""

    rms: Rms = CAST_THEN_WEIGHED
    wide_softmax: bool = True
    """Eager attention takes the softmax in float32, otherwise in the compute dtype."""
    wide_scores: bool = False
    """Eager attention multiplies queries and keys in float32."""
    sdpa: bool = True
    """False where it has no SDPA: whatever is asked for, attention is eager."""
    masks: bool = False
    """SDPA is always given a mask, also where attention is just causal."""
    own_heads: bool = False
    """Keys and values are copied for every query head before SDPA sees them, but not where there is one KV head, which
    SDPA has no fast kernel for."""
    laid_out: bool = False
    """Queries lie head by head, [batch, heads, seq, dim], when SDPA sees them, and so does what it puts out, which is
    then copied for the next matrix; otherwise they lie position by position."""
    wide_loss: bool = True
    """The loss takes the logits in float32, otherwise in the compute dtype."""
    tables: Literal["positions", "pairs"] = "positions"
    """What a table beside that of the tokens is asked for: each position, or each pair of positions."""
    rotations: int = 1
    """Rotary tables that layers share."""
    image_by_image: bool = False
    """The vision tower holds all images in one sequence and runs attention on one after the other."""
    fills_mask: bool = False
    """Scores are filled in where a mask of true and false says so, which backward wants too."""
    router: Literal["all", "chosen", "drawn"] = "all"
    """Weights of experts come of the scores of all of them, of the chosen ones alone, or of two draws (SparseMixer)."""
    chunks: bool = False
    """Without kernels of its own, it works on slices of what a matrix put out, which keep all of that (Mamba)."""
    wide_stream: bool = False
    """Layers hand on float32, whatever they compute in."""
    wide_weights: bool = False
    """What experts put out is weighed in float32."""


_BERT = Habits(wide_softmax=False, wide_loss=False)
_GEMMA = Habits(rms=ONE_PLUS_WEIGHT)
_MAMBA = Habits(sdpa=False, chunks=True, wide_stream=True)

HABITS: dict[str, Habits] = {
    "bert": _BERT,
    "bloom": Habits(sdpa=False),
    "distilbert": _BERT,
    "falcon": Habits(wide_softmax=False, masks=True, own_heads=True),
    "deepseek_v2": Habits(wide_weights=True),
    "deepseek_v3": Habits(wide_weights=True),
    "gemma": _GEMMA,
    "gemma2": _GEMMA._replace(sdpa=False),
    "gemma3_text": _GEMMA._replace(rotations=2),
    "gpt2": Habits(wide_softmax=False),
    "gpt_neox": Habits(laid_out=True),
    "gpt_oss": Habits(rms=WEIGHED_THEN_CAST, wide_softmax=False, sdpa=False, router="chosen"),
    "gptj": Habits(wide_scores=True, rotations=0),
    "granitemoe": Habits(router="chosen"),
    "falcon_mamba": _MAMBA,
    "jamba": Habits(chunks=True),
    "mamba": _MAMBA,
    "mamba2": _MAMBA,
    "mixtral": Habits(wide_weights=True),
    "mpt": Habits(sdpa=False, fills_mask=True),
    "olmo2": Habits(rms=WEIGHED_THEN_CAST),
    "phi": Habits(laid_out=True),
    "phi3": Habits(laid_out=True),
    "phimoe": Habits(router="drawn"),
    "qwen2_vl": Habits(image_by_image=True),
    "roberta": _BERT,
    "swin": Habits(wide_loss=False),
    "t5": Habits(rms=DIVIDED_AS_IT_IS, wide_softmax=False, wide_loss=False, tables="pairs"),
    "vit": Habits(wide_loss=False),
    "whisper": Habits(wide_softmax=False, laid_out=True, wide_loss=False),
    "xlm-roberta": _BERT,
}
"""By the family that a ModelSpec names; others have Llama's."""
