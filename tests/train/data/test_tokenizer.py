"""Tokenizers: what is encoded is decoded again; which tokens are special is known."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from meshwright.errors import MeshwrightError
from meshwright.train.data.sources import standard_library_text
from meshwright.train.data.tokenizer import ByteTokenizer, HubTokenizer, Tokenizer, load_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def learnt() -> Tokenizer:
    return train_tokenizer([standard_library_text(200_000).decode("utf-8", "replace")], 400)


def tokens(tokenizer: Tokenizer, text: str, *, whole: bool = True) -> list[int]:
    return [int(token) for token in next(iter(tokenizer.encode_all([text], whole=whole)))]


@given(st.text())
def test_bytes_come_back_as_the_text(text: str) -> None:
    plain = text.translate({0: None, 0x1A: None})
    found = tokens(ByteTokenizer(), plain)
    assert found[-1] == 0
    assert ByteTokenizer().decode(found) == plain.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def test_a_learnt_tokenizer_shortens_text_and_gives_it_back(learnt: Tokenizer) -> None:
    text = "def function(self, name):\n    return None  # ünï 例\n"
    found = tokens(learnt, text)
    assert learnt.vocabulary == 400
    assert len(found) < len(text.encode()) * 0.7
    assert found[-1] == learnt.end
    assert learnt.decode(found) == text


def test_a_saved_tokenizer_is_the_same_from_its_folder_and_its_file(learnt: Tokenizer, tmp_path: Path) -> None:
    learnt.save(tmp_path)
    text = "import sys\n"
    for what in (tmp_path, tmp_path / "tokenizer.json"):
        again = load_tokenizer(str(what))
        assert tokens(again, text) == tokens(learnt, text)
        assert again.end == learnt.end
    assert load_tokenizer(str(tmp_path)).mask == learnt.mask


def test_what_the_tokenizer_itself_begins_and_ends_a_text_with_stands(learnt: Tokenizer) -> None:
    from tokenizers.processors import TemplateProcessing

    assert isinstance(learnt, HubTokenizer)
    inner = PreTrainedTokenizerFast(tokenizer_object=learnt.inner.backend_tokenizer, sep_token="<|endoftext|>")
    ends = [("<mask>", learnt.mask), ("<|endoftext|>", learnt.end)]
    inner.backend_tokenizer.post_processor = TemplateProcessing("<mask> $0 <|endoftext|>", None, ends)  # type: ignore[arg-type]
    found = tokens(HubTokenizer(inner, "one that ends texts"), "ab")
    assert (found[0], found[-1], found.count(learnt.end or 0)) == (learnt.mask, learnt.end, 1)


def test_too_little_text_for_so_many_tokens_is_told() -> None:
    with pytest.raises(MeshwrightError, match=r"the data gives \d+ tokens, not 5000; write fewer"):
        train_tokenizer(["ab ab"], 5000)


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere.json", "there is no file or folder"), ("bad.json", "cannot be read: ")]
)
def test_a_tokenizer_that_cannot_be_read_is_told(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(MeshwrightError, match=said) as error:
        load_tokenizer(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_a_folder_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(MeshwrightError, match="cannot be read"):
        load_tokenizer(str(tmp_path))
