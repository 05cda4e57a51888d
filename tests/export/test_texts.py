"""Launch lines as people write them: variables, arrays, comments, continued lines."""

import pytest

from meshwright.errors import MeshwrightError
from meshwright.export.texts import flattened, launch_tokens, nested, read_flags, write_flags


@pytest.mark.parametrize(
    "script",
    [
        "torchrun --nproc_per_node 8 --nnodes 2 train.py --tp 4 --lr 1e-4",
        "TP=4\nexport LR=1e-4\ntorchrun --nproc_per_node=8 --nnodes=2 train.py --tp $TP \\\n  --lr ${LR}  # so far\n",
        'ARGS=(\n  --tp 4   # in a node\n  --lr 1e-4\n)\ntorchrun --nproc-per-node 8 --nnodes 2 train.py "${ARGS[@]}"',
        'ARGS="--tp 4 \\\n --lr 1e-4"\nL="torchrun --nproc_per_node 8 --nnodes 2"\n$L train.py $ARGS 2>&1 | tee --x',
        'A="--tp 4"\nB="$A --lr ${LR:-1e-4}"\nsrun bash -c "torchrun --nproc_per_node 8 --nnodes 2 train.py $B"',
    ],
)
def test_a_launch_line_is_found_however_it_is_written(script: str) -> None:
    tokens, devices = launch_tokens(script, "run.sh")
    assert tokens == ["--tp", "4", "--lr", "1e-4"]
    assert devices == {"devices_a_node": 8, "nodes": 2}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("#SBATCH --nodes=4 --gpus-per-node=8", {"nodes": 4, "devices_a_node": 8}),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:a100:8", {"nodes": 4, "devices_a_node": 8}),
        ("#SBATCH -N4\n#SBATCH --gpus-per-node h100:4", {"nodes": 4, "devices_a_node": 4}),
        ("#SBATCH --nodes 16\n#SBATCH --ntasks-per-node 8", {"nodes": 16, "devices_a_node": 8}),
        ("#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8", {"devices_a_node": 8}),
        ("#SBATCH --ntasks-per-node=1 --nodes=2-4", {}),
        ("# SBATCH --nodes=4\n##SBATCH --nodes=4", {}),
    ],
)
def test_devices_are_those_that_slurm_is_asked_for(asked: str, found: dict[str, int]) -> None:
    assert launch_tokens(f"#!/bin/bash\n{asked}\nsrun python train.py --tp 4", "run.sh") == (["--tp", "4"], found)


def test_what_a_launcher_is_told_counts_before_what_slurm_is_asked_for() -> None:
    script = (
        "#SBATCH --nodes=4 --gpus-per-node=8\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 train.py --tp 4"
    )
    assert launch_tokens(script, "run.sh")[1] == {"nodes": 4, "devices_a_node": 4}


def test_flags_have_no_value_one_or_several() -> None:
    tokens = ["--a", "--b", "1", "--c", "1", "-2.5", "--d=x", "activation_checkpoint:full"]
    assert read_flags(tokens, "line") == {
        "--a": True,
        "--b": "1",
        "--c": ["1", "-2.5"],
        "--d": "x",
        "activation_checkpoint.mode": "full",
    }


def test_flags_are_written_one_a_line() -> None:
    assert write_flags({"--a": True, "--b": 1, "--c": (1, 2)}) == "--a\n--b 1\n--c 1 2\n"


def test_a_flag_twice_is_an_error_in_either_spelling() -> None:
    with pytest.raises(MeshwrightError, match="--a_b is given twice"):
        read_flags(["--a-b", "1", "--a_b", "2"], "line")


def test_nested_names_come_back() -> None:
    data = {"a": {"b": {"c": 1}, "d": [1]}, "e": None}
    assert nested(flattened(data)) == data
