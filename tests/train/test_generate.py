"""A quick look at a language model: the likeliest tokens one after the other, or some that are drawn by a seed."""

from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from meshwright.cli import main
from meshwright.errors import MeshwrightError
from meshwright.train.convert import convert
from meshwright.train.data.tokenizer import ByteTokenizer, HubTokenizer, train_tokenizer
from meshwright.train.generate import Choice, generate
from tests.train.small import run_of
from tests.train.test_convert import saved

PROMPT = "def f("


def test_the_likeliest_tokens_follow_from_a_folder_and_from_a_checkpoint(tmp_path: Path) -> None:
    module = saved(tmp_path / "hub", "llama").eval()
    tokens = list(PROMPT.encode())
    with torch.no_grad():
        for _ in range(12):
            tokens.append(int(module(torch.tensor([tokens])).logits[0, -1].argmax()))
            if tokens[-1] == 0:
                break
    convert(tmp_path / "hub", tmp_path / "checkpoint")
    for folder in ("hub", "checkpoint"):
        found = generate(tmp_path / folder, PROMPT, Choice(12), tokenizer="bytes")
        assert found.text == ByteTokenizer().decode(tokens[len(PROMPT) :])
        assert found.tokens == len(tokens) - len(PROMPT)


def test_a_prompt_begins_as_the_tokenizer_begins_a_text(tmp_path: Path) -> None:
    module = saved(tmp_path, "llama", vocab_size=262).eval()
    tokenizer = train_tokenizer(["some text that tokens are learnt from"], 262)
    begin = ("<mask>", tokenizer.mask)
    assert isinstance(tokenizer, HubTokenizer)
    tokenizer.inner.backend_tokenizer.post_processor = TemplateProcessing("<mask> $0", None, [begin])
    tokenizer.save(tmp_path)
    prompt = [tokenizer.mask, *(int(token) for token in next(iter(tokenizer.encode_all(["some"], whole=False))))]
    with torch.no_grad():
        likeliest = int(module(torch.tensor([prompt])).logits[0, -1].argmax())
    assert generate(tmp_path, "some", Choice(1)).text == tokenizer.decode([likeliest])


def test_rows_that_only_fill_a_vocabulary_up_are_never_drawn(tmp_path: Path) -> None:
    module = saved(tmp_path, "llama", vocab_size=262)
    with torch.no_grad():
        module.get_parameter("lm_head.weight")[256:] *= 50  # the likeliest, one way or the other
    module.save_pretrained(tmp_path)  # type: ignore[operator]
    for temperature in (0.0, 1.0):
        found = generate(tmp_path, PROMPT, Choice(20, temperature), tokenizer="bytes")
        assert 0 < found.tokens <= 20


def test_what_is_drawn_follows_from_the_seed(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    drawn = [generate(tmp_path, PROMPT, Choice(40, 1.0, None, seed), tokenizer="bytes").text for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_runs_folder_gives_its_last_checkpoint_and_its_tokenizer(tmp_path: Path) -> None:
    for step in (1, 2):
        saved(tmp_path / f"hub-{step}", "llama", seed=step)
        convert(tmp_path / f"hub-{step}", tmp_path / "run" / "checkpoints" / f"step-{step:08d}")
    run_of(tmp_path / "run").write(tmp_path / "run" / "run.yaml")
    last = generate(tmp_path / "hub-2", PROMPT, Choice(8), tokenizer="bytes")
    assert generate(tmp_path / "run", PROMPT, Choice(8)) == last
    assert generate(tmp_path / "hub-1", PROMPT, Choice(8), tokenizer="bytes") != last


def test_a_users_turn_goes_through_the_chat_template(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    found = generate(tmp_path, "hello", Choice(1), tokenizer="bytes", chat=True)
    assert found.prompt == "<|user|>\nhello\n<|assistant|>\n"


@pytest.mark.parametrize(
    ("name", "prompt", "tokenizer", "said"),
    [
        ("bert", "a", "bytes", "is of BertForMaskedLM, which puts out no text"),
        ("gpt2", "a" * 64, "bytes", "the prompt has 64 tokens, and the model 64 positions"),
        ("gpt2", "a", None, "comes without a tokenizer; name one"),
    ],
)
def test_what_cannot_be_generated_is_told(
    name: str, prompt: str, tokenizer: str | None, said: str, tmp_path: Path
) -> None:
    saved(tmp_path, name)
    with pytest.raises(MeshwrightError, match=said):
        generate(tmp_path, prompt, tokenizer=tokenizer)


def test_the_command_prints_the_prompt_and_what_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "llama")
    with pytest.raises(SystemExit) as ended:
        main(["generate", str(tmp_path), "--prompt", PROMPT, "--tokens", "5", "--tokenizer", "bytes"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(PROMPT)
