"""What a user can get wrong on the way out and on the way in: one clear error each, and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import MeshwrightError
from meshwright.export.handing import export_plan
from meshwright.export.systems import SYSTEMS
from meshwright.export.taking import take_in
from meshwright.plan.resolve import read_inputs
from meshwright.plan.rules import Inputs

RECIPE = mw.recipe(global_batch=64, sequence=4096)
SIZES = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096"
BATCH = "--micro-batch-size 1 --global-batch-size 64"


def a_plan() -> Inputs:
    model, cluster = mw.model("llama-3.1-8b"), mw.cluster("8xh100")
    return Inputs(mw.uniform_plan(model, cluster, RECIPE, tp=2), model, cluster, RECIPE)


@pytest.mark.parametrize(
    ("system", "text", "said"),
    [
        ("megatron", f"{SIZES} {BATCH} --bf16 --fp16", "--bf16 and --fp16 contradict each other"),
        ("megatron", f"{SIZES} {BATCH} --sequence-parallel", "sp cuts activations over the tp ranks, and tp is 1"),
        (
            "megatron",
            f"{SIZES} {BATCH} --tensor-model-parallel-size 2 --tensor-model-parallel-size 4",
            "is given twice",
        ),
        ("megatron", f"{SIZES} {BATCH} --tensor-model-parallel-size two", "must be a whole number (got 'two')"),
        ("megatron", f"{SIZES} {BATCH} --tensor-model-parallel-size 3", "tp 3: 3 does not divide 8 devices"),
        (
            "megatron",
            f"{SIZES} {BATCH} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
            "3",
        ),
        ("megatron", f"{SIZES} {BATCH} --pipeline-model-parallel-layout Ett|tq", "a layout of stages like"),
        ("megatron", f"{SIZES} {BATCH} --num-distributed-optimizer-instances 0", "a whole number from 1 on (got '0')"),
        (
            "megatron",
            f"{SIZES} {BATCH} --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 40",
            "the ends of 2 stages have 40 layers, and the model has 32",
        ),
        ("megatron", f"{SIZES} --micro-batch-size 3 --global-batch-size 64", "does not divide the global batch of 64"),
        ("megatron", f"{SIZES} --micro-batch-size 1", "nothing says the batch of a step"),
        ("megatron", BATCH + " --seq-length 4096", "the settings do not describe the model; give --model"),
        ("megatron", f"{SIZES} {BATCH} --position-embedding-type alibi", "BLOOM alone is known with it"),
        (
            "megatron-deepspeed",
            f"{SIZES} {BATCH} --pipeline-model-parallel-size 2 --pp-partition-method parameters",
            "known are type:transformer",
        ),
        ("torchtitan", "--module llama3 --config llama3_8b --parallelism.fsdp_reshard_after_forward never", "no state"),
        ("torchtitan", "--module llama3 --config llama9_1b", "the settings do not describe the model; give --model"),
        ("accelerate", "--per_device_train_batch_size 2", "do not describe the model; give --model"),
    ],
)
def test_contradictions_are_told_in_one_line(system: str, text: str, said: str) -> None:
    with pytest.raises(MeshwrightError) as error:
        take_in(text.split(), system, cluster="8xh100", sequence=None)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ds.json", '{"train_batch_size": 64, "zero_optimization": {', "not JSON"),
        ("ds.json", "[1, 2]", "settings are a mapping of names to values, not a list"),
        ("ds.json", '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 3}', "contradicts micro-batches of 3"),
        ("ds.json", '{"bf16": {"enabled": true}, "fp16": {"enabled": true}}', "contradict each other"),
        ("ds.json", '{"train_batch_size": 64, "optimizer": {"type": ["Adam"]}}', "optimizer.type: must be one of"),
        ("ds.json", '{"zero_optimization": {"stage": "three"}}', "must be a whole number (got 'three')"),
        ("ds.json", '{"zero_optimization": {"stage": 3}}', "nothing says the batch of a step"),
        ("ds.yaml", "a: [1", "not YAML"),
        ("ds.yaml", "a: 2024-13-45", "not YAML"),
        ("ds.toml", "a = ", "not TOML"),
        ("run.sh", "CMD='--tp 1\n", "a quote or bracket is not closed"),
    ],
)
def test_broken_files_are_told_with_their_name(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MeshwrightError) as error:
        take_in(path, "deepspeed", cluster="8xh100", model="llama-3.1-8b", sequence=4096)
    assert said in str(error.value)
    assert name in str(error.value)


ENOUGH = {
    "megatron": f"{SIZES} {BATCH} --pipeline-model-parallel-size 2",
    "megatron-deepspeed": f"{SIZES} {BATCH} --pipeline-model-parallel-size 2",
    "torchtitan": "--module llama3 --config llama3_8b --training.local_batch_size 1 --training.global_batch_size 64",
    "accelerate": "--per_device_train_batch_size 1 --gradient_accumulation_steps 8",
}
"""Flags that make a plan."""


@pytest.mark.parametrize("system", ENOUGH)
def test_whatever_a_flag_is_given_is_taken_or_refused_in_one_line(system: str) -> None:
    model, refused = mw.model("llama-3.1-8b"), []
    for key in SYSTEMS[system].keys:
        for value in ("0", "-1", ""):
            flags = [*ENOUGH[system].split(), key.name, value]
            if not key.name.startswith("--") or key.name in flags[:-2]:
                continue
            try:
                take_in(flags, system, cluster="8xh100", model=model, sequence=4096 if system == "accelerate" else None)
            except MeshwrightError as error:
                refused.append(str(error))
    assert len(refused) > 4
    assert not any("\n" in each for each in refused)


def test_recompute_that_is_asked_for_twice_is_refused_as_the_trainer_does(tmp_path: Path) -> None:
    made = tmp_path / "accelerate.yaml"
    made.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: true}\n", encoding="utf-8")
    flags = f"{made} --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --activation_checkpointing true"
    with pytest.raises(MeshwrightError, match="are both on, which the Trainer refuses"):
        take_in(flags.split(), "accelerate", cluster="8xh100", model=mw.model("llama-3.1-8b"), sequence=4096)
    made.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: false}\n", encoding="utf-8")
    found = take_in(flags.split(), "accelerate", cluster="8xh100", model=mw.model("llama-3.1-8b"), sequence=4096)
    assert {row.recompute for row in found.inputs.plan.stages[0].layers} == {"full", "none"}  # none of embed and head


def test_as_many_processes_are_to_be_started_as_the_plan_has() -> None:
    model, cluster = mw.model("llama-3.1-8b"), mw.cluster("8xh100")
    four = mw.uniform_plan(model, cluster, RECIPE, tp=2, dp=2)
    found = export_plan(Inputs(four, model, cluster, RECIPE), "megatron")
    assert any(note.startswith("start 4 processes") for note in found.notes)


def test_an_unknown_system_is_told_with_the_nearest() -> None:
    with pytest.raises(MeshwrightError, match="did you mean 'megatron'"):
        export_plan(a_plan(), "megatrn")
    with pytest.raises(MeshwrightError, match="did you mean 'neox'"):
        take_in(["--x"], "neo-x", cluster="8xh100")
    with pytest.raises(MeshwrightError, match="no system that plans are written for is called 'neox'"):
        export_plan(a_plan(), "neox")


def test_more_devices_than_there_are_is_told(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py {SIZES} {BATCH}\n", encoding="utf-8")
    with pytest.raises(MeshwrightError, match="32 devices are asked for, and '8xh100' has 8"):
        take_in(script, "megatron", cluster="8xh100")


def test_a_model_of_another_size_is_told() -> None:
    with pytest.raises(MeshwrightError, match=r"32 layers are asked for, and 'llama-3\.1-70b' has 80"):
        take_in(f"{SIZES} {BATCH}".split(), "megatron", cluster="8xh100", model="llama-3.1-70b")


def test_a_typing_error_is_listed_with_what_was_meant() -> None:
    found = take_in(f"{SIZES} {BATCH} --sequence-paralel --my-own-flag 3".split(), "megatron", cluster="8xh100")
    assert found.left == ("--sequence-paralel", "--my-own-flag")
    assert found.notes == ("--sequence-paralel: not known; did you mean --sequence-parallel?",)


def test_values_that_a_trainer_fills_in_are_listed(tmp_path: Path) -> None:
    published = Path(__file__).with_name("published") / "zero3.json"
    filled_in = tmp_path / "auto.json"
    text = published.read_text(encoding="utf-8")
    filled_in.write_text(text.replace('"lr": 3e-5', '"lr": "auto"'), encoding="utf-8")
    said, left_open = (
        take_in([str(path)], "deepspeed", cluster="2x8xv100-32gb", model="llama-2-7b", sequence=2048)
        for path in (published, filled_in)
    )
    assert not any("auto" in name for name in said.left)
    assert set(left_open.left) - set(said.left) == {"optimizer.params.lr: auto"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "new.yaml", "--to", "megatron"], "this Meshwright reads version 1 (got 2)"),
        (["export", "plan.yaml", "--to", "megatrn"], "did you mean 'megatron'?"),
        (["export", "absent.yaml", "--to", "megatron"], "cannot read absent.yaml"),
        (["import", "--from", "deepspeed", "cut.json", "--cluster", "8xh100"], "cut.json:1: not JSON"),
        (["import", "--from", "megatron", "--bf16", "--fp16", "--cluster", "8xh100"], "contradict each other"),
        (["import", "--from", "megatron", "--bf16"], "--cluster must be given"),
    ],
)
def test_the_command_line_ends_with_2_and_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    a_plan().plan.write(tmp_path / "plan.yaml")
    newer = (tmp_path / "plan.yaml").read_text(encoding="utf-8").replace("meshwright_plan: 1", "meshwright_plan: 2")
    (tmp_path / "new.yaml").write_text(newer, encoding="utf-8")
    (tmp_path / "cut.json").write_text('{"train_batch_size": 64, "zero_opt', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_plan_without_a_meaning_is_refused() -> None:
    inputs = a_plan()
    broken = inputs.plan.model_copy(update={"micro_batches": 63})
    with pytest.raises(MeshwrightError, match="the plan has no meaning"):
        export_plan(inputs._replace(plan=broken), "megatron")


def test_reading_back_needs_what_the_plan_is_for(tmp_path: Path) -> None:
    a_plan().plan.write(tmp_path / "plan.yaml")
    assert export_plan(read_inputs(tmp_path / "plan.yaml"), "megatron").reasons == ()
