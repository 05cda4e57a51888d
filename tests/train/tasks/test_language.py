"""Language modelling: labels that are not shifted, texts kept apart, hidden tokens that anybody draws alike."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from meshwright.runtime.loss import IGNORED
from meshwright.train.data.encode import TextEncoder
from meshwright.train.data.pieces import Pieces, Single, packed
from meshwright.train.data.rows import Listed
from meshwright.train.data.tokenizer import ByteTokenizer
from meshwright.train.tasks.language import HiddenTokens, NextToken

BYTES = ByteTokenizer()
TEXTS = Listed([{"text": text} for text in ("abcdef", "gh", "ijklmnopq")])


def pieces(length: int) -> Pieces:
    return packed(TEXTS, TextEncoder(BYTES, "text"), length)


def hidden(length: int, seed: int = 0, share: float = 0.3) -> HiddenTokens:
    return HiddenTokens(pieces(length), BYTES, 0x1A, share, seed)


def test_labels_are_the_tokens_and_filling_does_not_count() -> None:
    samples = [NextToken(pieces(8)).sample(number, 0) for number in range(3)]
    assert all(sample.keys() == {"input_ids", "labels"} for sample in samples)
    counted = np.concatenate([sample["labels"][sample["labels"] != IGNORED] for sample in samples])
    assert bytes(counted.tolist()) == b"abcdef\0gh\0ijklmnopq\0"


def test_texts_that_are_kept_apart_have_positions_of_their_own() -> None:
    sample = NextToken(pieces(12), apart=True).sample(0, 0)
    assert sample["position_ids"].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 1]
    assert np.flatnonzero(sample["labels"] == IGNORED).tolist() == [7, 10]


def test_a_model_of_transformers_sees_texts_that_are_kept_apart_as_if_each_stood_alone() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)).double().eval()
    sample = NextToken(pieces(12), apart=True).sample(0, 0)
    batch = {name: torch.from_numpy(sample[name])[None] for name in ("input_ids", "position_ids")}
    with torch.no_grad():
        together = model(**batch, use_cache=False).logits[0]
        alone = [
            model(input_ids=batch["input_ids"][:, first:end]).logits[0] for first, end in ((0, 7), (7, 10), (10, 12))
        ]
    torch.testing.assert_close(together, torch.cat(alone))


@given(st.integers(0, 2**32), st.integers(0, 10**9), st.integers(0, 2))
def test_hidden_tokens_follow_from_seed_and_place_and_none_is_special(seed: int, place: int, number: int) -> None:
    one, two = (hidden(8, seed).sample(number, place) for _ in range(2))
    assert all((one[name] == two[name]).all() for name in one)
    tokens = pieces(8).piece(number)
    wanted = one["labels"] != IGNORED
    assert wanted.any()
    assert (one["labels"][wanted] == tokens.tokens[wanted]).all()
    assert (one["input_ids"][~wanted] == tokens.tokens[~wanted]).all()
    assert not (tokens.tokens[wanted] == BYTES.end).any()
    assert tokens.counts[wanted].all()


def test_an_epoch_hides_others_than_the_one_before() -> None:
    samples = [hidden(20).sample(0, place)["labels"] for place in (0, 1, 2, 3)]
    assert any((samples[0] != other).any() for other in samples[1:])


def test_of_the_hidden_tokens_eight_in_ten_are_masked_and_one_in_ten_stays() -> None:
    """Of about 15,000 tokens, within five standard deviations."""
    text = Listed([{"text": "abcdefghij" * 10_000}])
    task = HiddenTokens(packed(text, TextEncoder(BYTES, "text"), 100_000), BYTES, 0x1A, 0.15, 1)
    sample, tokens = task.sample(0, 0), task.pieces.piece(0).tokens
    wanted = sample["labels"] != IGNORED
    chosen = sample["input_ids"][wanted]
    count = len(chosen)
    assert abs(count - 15_000) < 5 * (15_000 * 0.85) ** 0.5
    for share, found in ((0.8, chosen == 0x1A), (0.1, chosen == tokens[wanted])):
        assert abs(found.sum() - count * share) < 5 * (count * share * (1 - share)) ** 0.5 + count * 0.1 / 256


def test_padding_is_told_to_the_model_and_never_hidden() -> None:
    task = HiddenTokens(Single(TEXTS, TextEncoder(BYTES, "text"), 8), BYTES, 0x1A, 0.9, 0)
    sample = task.sample(1, 0)
    assert sample["attention_mask"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert (sample["labels"][2:] == IGNORED).all()
