"""A run's samples: the same at each step whoever asks, every one once an epoch, and checked against the model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, T5Config, ViTConfig

import meshwright as mw
from meshwright.errors import MeshwrightError
from meshwright.model.spec import ModelSpec
from meshwright.recipe.data import Data
from meshwright.recipe.spec import Recipe
from meshwright.train.data import Dataset, open_data, prepare

SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = mw.model(LlamaConfig(**SMALL, vocab_size=300))
T5 = mw.model(T5Config(vocab_size=300, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8))
VIT = mw.model(
    ViTConfig(
        **SMALL, image_size=8, patch_size=4, num_channels=1, num_labels=10, architectures=["ViTForImageClassification"]
    )
)
BERT = mw.model(BertConfig(**SMALL, vocab_size=300))
PAIR = mw.model(BertForSequenceClassification(BertConfig(**SMALL, vocab_size=300, num_labels=2)))
TIGHT = mw.model(LlamaConfig(**SMALL, vocab_size=200))
TALKS = [{"prompt": f"what is {n}?", "response": str(n) * 5} for n in range(9)]
PAIRS = [
    {"source": f"{n} and {n}", "target": str(2 * n), "text": "x" * n, "label": "even" if n % 2 else "odd"}
    for n in range(9)
]


def recipe(kind: str = "causal_lm", batch: int = 4, length: Any = 16, seed: int = 0) -> Recipe:
    return mw.recipe(global_batch=batch, sequence=length, seed=seed, loss={"kind": kind})


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "rows.jsonl")


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module", params=[False, True], ids=["before", "streaming"])
def text(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Data, Dataset]:
    source = jsonl(tmp_path_factory.mktemp("text"), [{"text": f"{n} " * n} for n in range(30)])
    data = Data(source=source, streaming=request.param)
    return data, open_data(data, recipe(), LLAMA)


@settings(max_examples=20)
@given(steps=st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_a_step_has_the_same_samples_whatever_was_asked_before(text: tuple[Data, Dataset], steps: list[int]) -> None:
    data, used = text
    for step in steps:
        used.batch(step)
    assert same(used.batch(steps[0]), open_data(data, recipe(), LLAMA).batch(steps[0]))


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_batches_of_another_size_cut_the_same_run_of_samples(text: tuple[Data, Dataset], batch: int) -> None:
    data, fours = text
    cut = open_data(data, recipe(batch=batch), LLAMA)
    run = torch.cat([fours.batch(step)["input_ids"] for step in range(6)])
    assert torch.equal(torch.cat([cut.batch(step)["input_ids"] for step in range(24 // batch)]), run)


def test_an_epoch_of_batches_has_every_sample_once(text: tuple[Data, Dataset]) -> None:
    data = text[0].model_copy(update={"streaming": False})
    one = open_data(data, recipe(batch=1), LLAMA)
    assert one.steps is not None
    ids = [one.sample_ids(step)[0] for step in range(2 * one.steps)]
    assert sorted(ids[: one.steps]) == sorted(ids[one.steps :]) == list(range(one.steps))
    assert ids[: one.steps] != ids[one.steps :]


def test_a_stream_goes_on_where_a_checkpoint_was_made(text: tuple[Data, Dataset]) -> None:
    data, used = text
    state = json.loads(json.dumps(used.state(7)))
    resumed = open_data(data, recipe(), LLAMA)
    resumed.check_state(state)
    assert same(resumed.batch(7), used.batch(7))


def test_a_checkpoint_of_other_samples_is_refused(text: tuple[Data, Dataset]) -> None:
    data, used = text
    with pytest.raises(MeshwrightError, match="other samples: seed was 0, and is 1 now"):
        open_data(data, recipe(seed=1), LLAMA).check_state(used.state(3))
    with pytest.raises(MeshwrightError, match="other samples: content was"):
        open_data(data.model_copy(update={"limit": 9}), recipe(), LLAMA).check_state(used.state(3))


def test_a_conversation_is_a_sample_of_which_the_answer_counts(tmp_path: Path) -> None:
    batch = open_data(Data(source=jsonl(tmp_path, TALKS), shuffle=False), recipe(length=48), LLAMA).batch(0)
    assert batch.keys() == {"input_ids", "labels"}
    assert bytes(label for label in batch["labels"][2].tolist() if label >= 0) == b"22222\n\0"


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_conversations_are_packed_where_asked_for(packing: Any, tmp_path: Path) -> None:
    batch = open_data(Data(source=jsonl(tmp_path, TALKS), packing=packing), recipe(length=64), LLAMA).batch(0)
    assert ("position_ids" in batch) == (packing == "documents")
    assert (batch["labels"] == -100).any(dim=1).all()


def test_each_task_gives_what_its_model_takes(tmp_path: Path) -> None:
    source = jsonl(tmp_path, PAIRS)
    pairs = open_data(Data(source=source), recipe("seq2seq", length={"source": 12, "target": 6}), T5).batch(0)
    assert {name: tuple(each.shape) for name, each in pairs.items()} == {
        "input_ids": (4, 12), "attention_mask": (4, 12), "labels": (4, 6),
    }  # fmt: skip
    classes = open_data(Data(source=source, shuffle=False), recipe("classification"), PAIR).batch(0)
    assert classes["labels"].tolist() == [1, 0, 1, 0]
    assert classes["attention_mask"].sum(1).tolist() == [1, 2, 3, 4]
    images = open_data(Data(source="digits"), recipe("classification"), VIT).batch(0)
    assert images["pixel_values"].shape == (4, 1, 8, 8)
    assert images["pixel_values"].aminmax() == (-1, 1)
    masked = open_data(Data(source=source), recipe("masked_lm"), BERT).batch(0)
    assert masked.keys() == {"input_ids", "labels"}


def test_images_of_a_folder_are_resized_to_what_the_model_takes(tmp_path: Path) -> None:
    for name, value in (("dark", 0), ("light", 255)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((20, 30, 3), value, np.uint8)).save(tmp_path / name / "1.png")
    data = Data(source=str(tmp_path), image_size=8, shuffle=False)
    batch = open_data(data, recipe("classification", batch=2), VIT).batch(0)
    assert batch["labels"].tolist() == [0, 1]
    assert batch["pixel_values"].mean(dim=(1, 2, 3)).tolist() == [-1, 1]


def test_what_was_prepared_is_found_and_not_made_anew(tmp_path: Path) -> None:
    data = Data(
        source=jsonl(tmp_path, [{"text": f"{n} " * n} for n in range(60)]), tokenizer={"vocabulary": 280}, held_out=0.1
    )
    prepare(data, recipe(), LLAMA, tmp_path / "run")
    made = sorted(file for file in (tmp_path / "run").rglob("*") if file.is_file())
    one, held = (open_data(data, recipe(), LLAMA, part=part, folder=tmp_path / "run") for part in ("train", "held_out"))
    assert sorted(file for file in (tmp_path / "run").rglob("*") if file.is_file()) == made
    assert same(one.batch(3), open_data(data, recipe(), LLAMA).batch(3))
    assert not same(one.batch(0), held.batch(0))


def test_classes_have_the_same_numbers_in_what_is_held_out(tmp_path: Path) -> None:
    rows = [{"text": name, "label": name} for name in "cab"]
    data = Data(source=jsonl(tmp_path, rows), held_out=0.3, shuffle=False)
    model = mw.model(BertForSequenceClassification(BertConfig(**SMALL, vocab_size=300, num_labels=3)))
    found = {}
    for part, batch in (("train", 2), ("held_out", 1)):
        samples = open_data(data, recipe("classification", batch=batch), model, part=part).batch(0)
        found |= {chr(text[0]): int(label) for text, label in zip(samples["input_ids"], samples["labels"], strict=True)}
    assert found == {"a": 0, "b": 1, "c": 2}


PICTURE = [{"image": "nowhere.png", "label": 0}]
MISFITS: list[tuple[str, ModelSpec, list[dict[str, Any]], dict[str, Any], str]] = [
    ("causal_lm", TIGHT, PAIRS, {}, "'bytes' has 256 tokens, and the vocabulary of model .* 200"),
    ("causal_lm", LLAMA, PAIRS, {"columns": {"text": "txet"}}, "columns label, source, target, text; .* 'txet', or"),
    ("causal_lm", LLAMA, [{"text": 5}], {}, "column 'text' holds no text: 5"),
    ("seq2seq", T5, PAIRS, {"columns": {"target": "targets"}}, "no column 'targets'; did you mean 'target'"),
    ("classification", PAIR, PAIRS, {"columns": {"label": "target"}}, "has 9 classes; the model tells 2 apart"),
    ("classification", PAIR, [{"text": "a", "label": 2}], {}, "has the class 2; the model tells 0 to 1 apart"),
    ("classification", PAIR, [{"text": "a", "label": 0.5}], {}, "holds 0.5, which is no class"),
    ("masked_lm", BERT, PAIRS, {"packing": "documents"}, "kept apart in causal_lm alone"),
    ("classification", VIT, PICTURE, {"image_size": 8}, "holds no image that can be read"),
    ("classification", VIT, PICTURE, {"image_size": 16}, "give 16 patches, and the model has 5 positions"),
    ("classification", PAIR, PICTURE, {}, "holds images, and the model takes none"),
]


@pytest.mark.parametrize("misfit", MISFITS, ids=lambda misfit: misfit[-1])
def test_data_that_does_not_fit_is_told_in_one_line(misfit: Any, tmp_path: Path) -> None:
    kind, model, rows, settings, said = misfit
    with pytest.raises(MeshwrightError, match=said) as error:
        open_data(Data(source=jsonl(tmp_path, rows), **settings), recipe(kind), model).batch(0)
    assert "\n" not in str(error.value)
