"""Models with several streams: what the cost of their layers leaves out and counts once."""

from meshwright.cost.placement import Placement
from meshwright.cost.shares import Share
from meshwright.model.operators import Linear
from tests.cost.build import inputs

LLAVA = {"patches": 577, "merged": 576, "tokens": 1024}


def _shares(placement: Placement, layer: str) -> list[Share]:
    return [share for part in placement.shares(placement.block_of[layer]) for share in part]


def test_what_no_loss_sees_runs_but_has_no_backward() -> None:
    placement = Placement(inputs("llava-1.5-7b", "8xh100", {"dp": 8}, {"dp": "dp/zero3"}, sequence=LLAVA))
    for layer, used in {"vision.22": True, "vision.23": False, "vision_norm": False, "projector": True}.items():
        assert (placement.learns[layer], placement.fed[layer]) == (used, used)
        assert any(share.learns or share.passes for share in _shares(placement, layer)) == used
    unlike = [placement.block_of[layer] for layer in ("vision.22", "vision.23")]
    flops = [sum(share.operator.flops(share.work).forward for share in _shares(placement, b.names[0])) for b in unlike]
    assert flops[0] == flops[1] > 0


def test_no_layer_keeps_the_encoders_output_for_itself() -> None:
    given = inputs("t5-small", "8xh100", {"dp": 8}, {"dp": "dp"}, sequence={"source": 512, "target": 128})
    matrices = [share for share in _shares(Placement(given), "decoder.1") if isinstance(share.operator, Linear)]
    fresh = {share.operator.path.rpartition("layer.")[2]: share.fresh for share in matrices}
    assert [fresh[f"0.SelfAttention.{name}"] for name in "qkv"] == [True, False, False]
    assert [fresh[f"1.EncDecAttention.{name}"] for name in "qkv"] == [True, False, False]
