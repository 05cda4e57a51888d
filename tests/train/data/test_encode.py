"""Conversations: what the assistant says counts, and nothing else."""

import numpy as np
import pytest

from meshwright.errors import MeshwrightError
from meshwright.recipe.data import Columns
from meshwright.train.data.encode import ChatEncoder, Encoded
from meshwright.train.data.rows import Row
from meshwright.train.data.tokenizer import ByteTokenizer

TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two?"},
    {"role": "assistant", "content": "2"},
]


def encoded(row: Row, template: str | None = None) -> Encoded:
    return next(ChatEncoder(ByteTokenizer(template), Columns())([row]))


def counted(found: Encoded) -> str:
    assert found.counts is not None
    return bytes(np.where(found.counts, found.tokens, ord("_")).tolist()).decode()


def test_answers_count_up_to_what_ends_them() -> None:
    found = encoded({"messages": TALK})
    text = ByteTokenizer().chat(TALK) + "\0"
    assert bytes(found.tokens.tolist()).decode() == text
    assert counted(found).replace("_", "") == "1\n2\n\0"
    assert counted(found)[text.index("1\n")] == "1"


def test_a_prompt_and_a_response_are_a_conversation_of_two_turns() -> None:
    pair = encoded({"prompt": "one?", "response": "1"})
    same = encoded({"messages": [TALK[1], TALK[2]]})
    assert pair.tokens.tolist() == same.tokens.tolist()
    assert counted(pair) == counted(same)


def test_a_template_of_ones_own_is_taken() -> None:
    found = encoded({"messages": TALK[1:3]}, "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}{% endfor %}")
    assert bytes(found.tokens.tolist()) == b"[u]one?[a]1\0"
    assert counted(found) == "_______[a]1\0"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[-1].content }}", "does not add turn to turn"),
        ("{{ raise_exception('no system') }}", "the chat template fails .* no system"),
        ("{% for m in %}", "the chat template fails"),
    ],
)
def test_a_template_that_does_not_serve_is_told(template: str, said: str) -> None:
    with pytest.raises(MeshwrightError, match=said):
        encoded({"messages": TALK}, template)


@pytest.mark.parametrize(
    "row", [{"messages": "hello"}, {"messages": TALK[:2]}, {"messages": []}, {"prompt": "a", "response": 3}]
)
def test_what_is_no_conversation_is_told(row: Row) -> None:
    with pytest.raises(MeshwrightError, match="column '"):
        encoded(row)
