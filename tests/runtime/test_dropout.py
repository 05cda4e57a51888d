"""What a model draws, it draws from the counter, or it is refused."""

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from meshwright.errors import PlanError
from meshwright.runtime.dropout import check_drawn
from meshwright.runtime.randomness import Counter, Share, draw_calls

SIZES = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 9}
SIZES |= {"decoder_attention_heads": 2, "pad_token_id": 0, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_layerdrop": 0.1}, "'encoder' skips layers at random"),
        ({"apply_spec_augment": True}, "masks features"),
    ],
)
def test_what_every_rank_would_draw_for_itself_is_refused(fields: dict[str, object], message: str) -> None:
    check_drawn(transformers.WhisperModel(transformers.WhisperConfig(**SIZES)))
    with pytest.raises(PlanError, match=message):
        check_drawn(transformers.WhisperModel(transformers.WhisperConfig(**SIZES, **fields)))


class _Attends(nn.Module):
    """Attention that drops, as torch's own function or in plain products."""

    def __init__(self, *, plain: bool, causal: bool = False) -> None:
        super().__init__()
        self.plain, self.causal = plain, causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.plain:
            return functional.scaled_dot_product_attention(x, x, x, mask, 0.4, self.causal)
        scores = x @ x.mT / x.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return functional.dropout(scores.softmax(-1), 0.4) @ x


def _attended(module: nn.Module, x: Tensor, heads: Share = (0, 1), mask: Tensor | None = None) -> Tensor:
    draw_calls(module, "here", Counter(7), lambda: (0, len(x)), heads)
    out: Tensor = module(x, mask)
    return out


X = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
"""[samples, heads, positions, width]"""


@pytest.mark.parametrize("causal", [True, False])
def test_torchs_attention_drops_what_plain_products_drop(causal: bool) -> None:
    mask = None if causal else torch.arange(5) < torch.tensor([5, 4, 2])[:, None, None, None]
    found = [_attended(_Attends(plain=plain, causal=causal), X, mask=mask) for plain in (True, False)]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
    assert (found[0] - functional.scaled_dot_product_attention(X, X, X, mask, 0.0, causal)).abs().max() > 0.1


def test_ranks_with_some_heads_drop_what_one_with_all_does() -> None:
    whole = _attended(_Attends(plain=False), X)
    parts = [_attended(_Attends(plain=False), part, (place, 2)) for place, part in enumerate(X.chunk(2, 1))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-12)
