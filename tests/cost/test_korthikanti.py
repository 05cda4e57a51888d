"""The Megatron kernel sets against Korthikanti 2022 ("Reducing Activation Recomputation in Large Transformer Models",
arXiv 2205.05198): table 2, equations 1 to 6, and figure 7. Table 5's hardware FLOPs are not: its appendix counts
the core attention three times more under selective recompute (72 B L s h² · s / 6h), where it is computed once more.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.shares import Extent, Learning, layer_shares
from meshwright.cost.uses import Use, storage_of
from meshwright.cost.ways import Ways
from meshwright.model.hf_config import from_config
from meshwright.model.resolve import from_catalog
from meshwright.model.spec import LayerStack, ModelSpec

SEQUENCE, VOCABULARY = 2048, 51200


class Setting(NamedTuple):
    """A row of table 3; eight-way tensor parallel all."""

    name: str
    heads: int
    hidden: int
    layers: int
    samples: int
    """Of a micro-batch."""

    @property
    def model(self) -> ModelSpec:
        """The catalogue's."""
        return from_catalog(self.name)

    @property
    def numbers(self) -> int:
        """s b h."""
        return SEQUENCE * self.samples * self.hidden

    @property
    def scores(self) -> float:
        """5 a s / h."""
        return 5 * self.heads * SEQUENCE / self.hidden


SETTINGS = (
    Setting("gpt-22b", 64, 6144, 48, 4),
    Setting("gpt-175b", 96, 12288, 96, 1),
    Setting("gpt-530b", 128, 20480, 105, 1),
    Setting("gpt-1t", 160, 25600, 128, 1),
)
EACH = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
TENSOR, SEQUENCED = Ways(tensor=8), Ways(tensor=8, scattered=8)


def uses(model: ModelSpec, stack: LayerStack, ways: Ways, samples: int, kernels: str = "megatron-fused") -> list[Use]:
    """Of one layer on one rank, in bf16 on GPUs."""
    extent = Extent(samples, {"tokens": SEQUENCE}, "tokens")
    shares = layer_shares([(part, ways) for part in stack.parts], extent, Learning())
    storage = storage_of(2, "nccl", model.family)
    return [KERNEL_SETS[kernels].use(share, storage) for part in shares for share in part]


def decoder(model: ModelSpec) -> LayerStack:
    """The stack of blocks."""
    return next(stack for stack in model.stacks if stack.span.startswith("decoder"))


def per_number(setting: Setting, ways: Ways, *, selective: bool = False) -> float:
    """Bytes of one layer in units of s b h."""
    found = uses(setting.model, decoder(setting.model), ways, setting.samples)
    return sum(use.kept - selective * use.core for use in found) / setting.numbers


@EACH
@pytest.mark.parametrize(
    ("ways", "selective", "formula"),
    [
        pytest.param(Ways(), False, lambda scores, t: 34 + scores, id="no parallelism"),
        pytest.param(TENSOR, False, lambda scores, t: 10 + 24 / t + scores / t, id="tensor"),
        pytest.param(SEQUENCED, False, lambda scores, t: 34 / t + scores / t, id="tensor and sequence"),
        pytest.param(TENSOR, True, lambda scores, t: 10 + 24 / t, id="tensor, selective"),
        pytest.param(SEQUENCED, True, lambda scores, t: 34 / t, id="tensor and sequence, selective"),
    ],
)
def test_a_layer_keeps_what_table_2_says(
    setting: Setting, ways: Ways, selective: bool, formula: Callable[[float, int], float]
) -> None:
    assert per_number(setting, ways, selective=selective) == pytest.approx(formula(setting.scores, 8), rel=1e-12)


@pytest.mark.parametrize(
    ("setting", "scores", "saved"),
    [pytest.param(SETTINGS[1], 80, 0.70, id="gpt-3"), pytest.param(SETTINGS[2], 64, 0.65, id="mt-nlg")],
)
def test_selective_recompute_saves_the_share_that_section_5_names(setting: Setting, scores: int, saved: float) -> None:
    """5 a s / h is 80 and 64, and leaving that out saves 70 % and 65 % of the activations."""
    whole, left = (per_number(setting, Ways(), selective=selective) for selective in (False, True))
    assert whole - left == pytest.approx(scores)
    assert 1 - left / whole == pytest.approx(saved, abs=0.005)


@EACH
def test_both_techniques_bring_memory_to_a_fifth_as_in_figure_7(setting: Setting) -> None:
    """Against tensor parallelism alone: either to roughly half, both together to about 20 %, full recompute to 10 %."""
    base = per_number(setting, TENSOR)
    assert 0.5 < per_number(setting, SEQUENCED) / base < 0.7
    assert 0.45 < per_number(setting, TENSOR, selective=True) / base < 0.65
    assert 0.16 < per_number(setting, SEQUENCED, selective=True) / base < 0.205
    assert 0.07 < 2 / base < 0.10


@EACH
@pytest.mark.parametrize("selective", [False, True])
def test_a_device_keeps_the_total_of_equation_5(setting: Setting, selective: bool) -> None:
    """All layers, the embedding's dropout, the last norm and matrix, and the logits in float32 (section 4.3):
    s b h L / t (34 + 5 a s / h) + s b h / t (1 + 4 (1 + v / h)), where one stage has all of them. Token and position
    indices, 8 bytes each, are not in the paper.
    """
    model, t = setting.model, 8
    embed, head = model.stacks[0], model.stacks[-1]
    layers = setting.layers * per_number(setting, SEQUENCED, selective=selective)
    ends = sum(use.kept for stack in (embed, head) for use in uses(model, stack, SEQUENCED, setting.samples))
    indices = 8 * SEQUENCE * (setting.samples + 1)
    expected = setting.layers * (34 + (0 if selective else setting.scores)) / t
    expected += (1 + 4 * (1 + VOCABULARY / setting.hidden)) / t
    found = layers + (ends - indices) / setting.numbers
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("ways", [Ways(), SEQUENCED], ids=["one rank", "tp+sp"])
def test_grouped_heads_and_gated_mlps_follow_by_the_same_inventory(groups: int, ways: Ways) -> None:
    """Two norms, the inputs of four matrices with their like (gate and up read the same): 12 s b h with queries; keys
    and values 4 s b h g / a; gate and up 4 s b f, their product 2 s b f; with flash attention 4 bytes for each head and
    position. RMS norms keep no mean; there is no dropout.
    """
    hidden, heads, ffn, samples = 1024, 16, 2816, 2
    config = {
        "model_type": "megatron-gpt",
        "num_layers": 2,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": 8 if ways.tensor > 1 else groups,  # fewer than ranks are copied
        "ffn_hidden_size": ffn,
        "swiglu": True,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "vocab_size": VOCABULARY,
    }
    model, groups = from_config(config), config["num_query_groups"]  # type: ignore[assignment]
    found = sum(use.kept for use in uses(model, decoder(model), ways, samples, "megatron-flash"))
    positions = SEQUENCE * samples
    expected = positions * (12 * hidden + 4 * hidden * groups / heads + 6 * ffn + 4 * heads) / ways.tensor
    assert found == expected
