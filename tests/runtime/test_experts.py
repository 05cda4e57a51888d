"""What of routed experts the runtime refuses, and why."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from meshwright.errors import PlanError
from meshwright.runtime.experts import check_routers, share_of, spread_experts

SIZES: dict[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
}
THREE: Any = SimpleNamespace(size=3, place=1)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"output_router_logits": True}, "a loss that balances its routers (0.001)"),
        ({"router_jitter_noise": 0.1}, "draw noise (0.1)"),
    ],
)
def test_routers_that_do_more_than_choose_are_refused(field: dict[str, Any], said: str) -> None:
    with torch.device("meta"):
        module = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, **field))
    with pytest.raises(PlanError) as caught:
        check_routers(module)
    assert said in str(caught.value)


def test_experts_that_are_modules_of_their_own_are_refused() -> None:
    experts = nn.Module()
    experts.num_experts = 3  # type: ignore[assignment]
    experts.each = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    with pytest.raises(PlanError, match=r"'mlp.experts.each.0.weight' is not; write 'dp'"):
        spread_experts(experts, "mlp.experts", THREE, None)


def test_ranks_take_a_run_each_of_positions_that_divide() -> None:
    assert share_of(torch.arange(6), THREE).tolist() == [2, 3]
    with pytest.raises(PlanError, match="7 positions do not divide over the 3 ranks"):
        share_of(torch.arange(7), THREE)
