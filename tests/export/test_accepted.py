"""The systems' own code accepts what is written for them. A package that is missing skips its tests, and says so:
`pip install megatron-core torchtitan deepspeed` (those that docs/export.md names were run so).
"""

import dataclasses
import importlib
import json
import os
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.export.handing import export_plan
from meshwright.export.texts import read_flags
from meshwright.plan.rules import Inputs

RECIPE = mw.recipe(global_batch=64, sequence=4096)


def written(system: str, model: str, cluster: str, **degrees: Any) -> dict[str, str]:
    """The files of a uniform plan; those of accelerate and DeepSpeed may be the nearest plan's."""
    spec, where = mw.model(model), mw.cluster(cluster)
    return export_plan(Inputs(mw.uniform_plan(spec, where, RECIPE, **degrees), spec, where, RECIPE), system).files


def wanted(package: str, module: str) -> Any:
    """A module of a system, or a skip that says what is missing."""
    try:
        release = version(package)
        found = importlib.import_module(module)
    except (PackageNotFoundError, ImportError) as error:
        pytest.skip(f"{package} is not here, or lacks something: {error}")
    print(f"{package} {release}")  # noqa: T201
    return found


ACCELERATE = [
    {"zero": 3, "recompute": "full"},
    {"zero": 3, "shard": 4, "recompute": "full"},
    {"zero": 0},
]


@pytest.mark.parametrize("degrees", ACCELERATE, ids=str)
def test_accelerate_loads_its_yaml(degrees: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = wanted("accelerate", "accelerate.commands.launch")
    utils = wanted("accelerate", "accelerate.utils.launch")
    files = written("accelerate", "llama-3.1-8b", "8xh100", **degrees)
    path = tmp_path / "accelerate.yaml"
    path.write_text(files["accelerate.yaml"], encoding="utf-8")
    parsed = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments = launch._validate_launch_command(parsed)[0]
    assert arguments.num_processes == 8
    assert arguments.mixed_precision == "bf16"
    assert arguments.use_fsdp == (degrees["zero"] == 3)
    environment = dict(os.environ)
    for name, value in utils.prepare_multi_gpu_env(arguments).items():
        if name not in environment:
            monkeypatch.setenv(name, value)
    if degrees["zero"] == 3:
        plugin = wanted("accelerate", "accelerate.utils").FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2
        assert plugin.reshard_after_forward is True
        assert plugin.activation_checkpointing is True
    if "shard" in degrees:
        sizes = wanted("accelerate", "accelerate.parallelism_config").ParallelismConfig()
        assert (sizes.dp_replicate_size, sizes.dp_shard_size) == (2, 4)


@pytest.mark.parametrize("degrees", ACCELERATE, ids=str)
def test_transformers_parses_the_trainers_arguments(degrees: dict[str, Any], tmp_path: Path) -> None:
    transformers = wanted("transformers", "transformers")
    text = written("accelerate", "llama-3.1-8b", "8xh100", **degrees)["trainer.args"]
    here = ["--output_dir", str(tmp_path), "--use_cpu"]
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (found,) = parser.parse_args_into_dataclasses([*shlex.split(text), *here])
    assert found.per_device_train_batch_size * found.gradient_accumulation_steps * 8 == RECIPE.global_batch
    assert found.optim == "adamw_torch"
    assert (found.learning_rate, found.weight_decay) == (
        RECIPE.optimizer.learning_rate,
        RECIPE.optimizer.weight_decay,
    )
    assert (found.adam_beta1, found.adam_beta2, found.adam_epsilon) == (
        *RECIPE.optimizer.betas,
        RECIPE.optimizer.epsilon,
    )
    assert (found.max_grad_norm, found.seed) == (RECIPE.clip_norm, RECIPE.seed)
    assert not found.gradient_checkpointing  # FSDP's own, by the YAML; or none


DEEPSPEED = [
    {"zero": 3, "recompute": "full"},
    {"zero": 2, "tp": 2, "recompute": "full"},
    {"zero": 1, "pp": 4, "recompute": "full"},
    {"zero": 3, "ulysses": 4, "recompute": "full"},
]


@pytest.mark.parametrize("degrees", DEEPSPEED, ids=str)
def test_deepspeed_loads_its_json(degrees: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = wanted("deepspeed", "deepspeed.runtime.config")
    monkeypatch.setattr(config.dist, "get_rank", lambda *_: 0)
    data = json.loads(written("deepspeed", "llama-3.1-8b", "8xh100", **degrees)["ds_config.json"])
    ranks = 8 // degrees.get("tp", 1) // degrees.get("pp", 1) // degrees.get("ulysses", 1)

    class Ranks:
        """What DeepSpeed asks of a model that knows its own ranks."""

        def get_data_parallel_world_size(self) -> int:
            return ranks

    loaded = config.DeepSpeedConfig(dict(data), mpu=Ranks())
    assert loaded.zero_optimization_stage == degrees["zero"]
    assert loaded.train_batch_size == RECIPE.global_batch
    assert loaded.gradient_accumulation_steps * loaded.train_micro_batch_size_per_gpu * ranks == RECIPE.global_batch
    assert loaded.pipeline["stages"] == (degrees.get("pp") or "auto")
    assert loaded.tensor_parallel_config.autotp_size == (degrees.get("tp") or 0)


MEGATRON = [
    ("llama-3.1-8b", "8xh100", {"tp": 2, "zero": 1, "sp": True, "recompute": "selective"}),
    ("llama-3.1-8b", "8xh100", {"cp": 2, "zero": 1, "recompute": "full"}),
    ("llama-3.1-70b", "8x8xh100", {"tp": 8, "pp": 4, "zero": 1, "sp": True, "recompute": "full"}),
    ("llama-3.1-70b", "8x8xh100", {"tp": 8, "pp": 4, "sp": True, "layers_per_stage": [19, 21, 21, 19]}),
    ("llama-3.1-70b", "8x8xh100", {"tp": 8, "pp": 4, "virtual": 2, "sp": True, "recompute": "full"}),
    ("mixtral-8x7b", "2x8xh100", {"tp": 2, "ep": 8, "etp": 1, "zero": 1, "sp": True, "recompute": "full"}),
    ("mistral-7b-v0.3", "8xh100", {"tp": 8, "recompute": "full"}),
]


@pytest.mark.parametrize(("model", "cluster", "degrees"), MEGATRON, ids=str)
def test_megatron_makes_its_configuration_of_the_flags(model: str, cluster: str, degrees: dict[str, Any]) -> None:
    module = wanted("megatron-core", "megatron.core.transformer.transformer_config")
    text = written("megatron", model, cluster, **degrees)["megatron.args"]
    flags = {name.lstrip("-").replace("-", "_"): value for name, value in read_flags(shlex.split(text), "").items()}
    built = module.TransformerConfig(**_configuration(module.TransformerConfig, flags))
    assert built.tensor_model_parallel_size == degrees.get("tp", 1)
    assert built.num_layers == sum(layer.index is not None for layer in mw.model(model).layers)
    if "layers_per_stage" in degrees:
        counts = [
            len([each for each in stage[0] if each.name == "decoder"])
            for stage in built.pipeline_model_parallel_layout.layout
        ]
        assert counts == degrees["layers_per_stage"]


def _configuration(kind: type, flags: dict[str, Any]) -> dict[str, Any]:
    """Fields of Megatron's dataclass from flags, as its `core_transformer_config_from_args` takes them."""
    known = {field.name for field in dataclasses.fields(kind)}
    found = {name: _value(value) for name, value in flags.items() if name in known}
    torch = importlib.import_module("torch")
    more: dict[str, Any] = {"add_bias_linear": "disable_bias_linear" not in flags, "pipeline_dtype": torch.bfloat16}
    if "swiglu" in flags:
        more |= {
            "gated_linear_unit": True,
            "activation_func": torch.nn.functional.silu,
            "bias_activation_fusion": False,
        }
    if "num_experts" in flags:
        more |= {"num_moe_experts": int(flags["num_experts"]), "moe_token_dispatcher_type": "alltoall"}
    if "num_virtual_stages_per_pipeline_rank" in flags:
        more["virtual_pipeline_model_parallel_size"] = int(flags["num_virtual_stages_per_pipeline_rank"])
    return found | more


def _value(value: Any) -> Any:
    if not isinstance(value, str):
        return [_value(each) for each in value] if isinstance(value, list) else value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


TORCHTITAN = [
    ("llama-3.1-8b", "8xh100", {"tp": 2, "zero": 3, "sp": True, "recompute": "full"}),
    ("llama-3.1-8b", "8xh100", {"zero": 3, "shard": 4, "recompute": "full"}),
    ("llama-3.1-70b", "8x8xh100", {"tp": 8, "cp": 2, "pp": 2, "zero": 3, "sp": True, "recompute": "full"}),
    ("llama-3.1-8b", "8xh100", {"pp": 4, "zero": 3, "recompute": "full", "layers_per_stage": [7, 9, 9, 7]}),
]


@pytest.mark.parametrize(("model", "cluster", "degrees"), TORCHTITAN, ids=str)
def test_torchtitan_parses_its_arguments(
    model: str, cluster: str, degrees: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = wanted("torchtitan", "torchtitan.config.manager")
    wanted("torchtitan", "torchtitan.models.llama3.config_registry")
    monkeypatch.chdir(tmp_path)
    text = written("torchtitan", model, cluster, **degrees)["torchtitan.args"]
    config = manager.ConfigManager().parse_args(shlex.split(text))
    sizes = config.parallelism
    assert (sizes.tensor_parallel_degree, sizes.context_parallel_degree) == (degrees.get("tp", 1), degrees.get("cp", 1))
    assert sizes.pipeline_parallel_degree == degrees.get("pp", 1)
    assert config.training.seq_len == RECIPE.sequence
    assert config.training.global_batch_size == RECIPE.global_batch
    assert "Full" in type(config.activation_checkpoint).__qualname__
    if "layers_per_stage" in degrees:
        counts = [sum(name.startswith("layers.") for name in part) for part in sizes.module_fqns_per_model_part]
        assert counts == degrees["layers_per_stage"]
