"""What a step's batch is to a model."""

from types import SimpleNamespace

import pytest
import torch

from meshwright.errors import PlanError
from meshwright.runtime.batch import shifted_right
from meshwright.runtime.loss import TARGETS, count_tokens

LABELS = torch.tensor([[5, 6, -100, 7], [-100, -100, 8, 9]])


def test_decoders_are_given_the_label_before_each() -> None:
    """As transformers makes them, padding where nothing counts."""
    given = shifted_right(LABELS, SimpleNamespace(decoder_start_token_id=1, pad_token_id=0))
    assert given.tolist() == [[1, 5, 6, 0], [1, 0, 0, 8]]


def test_padding_starts_a_decoder_whose_configuration_names_no_other_token() -> None:
    assert shifted_right(LABELS, SimpleNamespace(pad_token_id=3))[:, 0].tolist() == [3, 3]


def test_a_model_that_names_no_padding_wants_its_decoder_inputs() -> None:
    with pytest.raises(PlanError, match="no 'decoder_input_ids', and the model's configuration no 'pad_token_id'"):
        shifted_right(LABELS, SimpleNamespace())


@pytest.mark.parametrize(("kind", "count"), [("causal_lm", 4), ("masked_lm", 5), ("seq2seq", 5)])
def test_labels_are_those_of_the_next_token_in_causal_models_alone(kind: str, count: int) -> None:
    assert count_tokens(TARGETS[kind](LABELS)) == count
