"""Accelerate: FSDP2 by its YAML, with the batch in the arguments of transformers' Trainer, as of accelerate 1.15.

Names: `commands/config/config_args.py`, `commands/launch.py` and `parallelism_config.py` there; TrainingArguments of
transformers 5. The YAML takes no batch: a script gives it to its Accelerator or Trainer. Looked up in 2026-11.
"""

from meshwright.errors import PlanError
from meshwright.export.deepspeed import with_batch
from meshwright.export.fields import Fields, parallel
from meshwright.export.keys import COUNT, NOTHING, REAL, TEXT, TRUTH, WHOLE, Key, Values, words
from meshwright.export.system import Given, System, copies_of, offloaded, take, with_replicas
from meshwright.export.texts import write_flags, write_yaml
from meshwright.plan.rules import Inputs

_FSDP1 = words({"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "1": 3, "2": 2, "3": 0})
KEYS = (
    Key("compute_environment", "environment", TEXT),
    Key("distributed_type", "kind", words({"FSDP": "FSDP", "MULTI_GPU": "MULTI_GPU", "NO": "MULTI_GPU"})),
    Key("num_machines", "nodes"),
    Key("num_processes", "world"),
    Key(
        "mixed_precision",
        "recipe.precision.compute",
        words({"bf16": "bf16", "fp16": "fp16", "no": "fp32", False: "fp32"}),
        "fp32",
    ),
    Key("fsdp_config.fsdp_version", "version"),
    Key("fsdp_config.fsdp_reshard_after_forward", "reshard", TRUTH),
    Key("fsdp_config.fsdp_sharding_strategy", "zero", _FSDP1, old=True),
    Key("fsdp_config.fsdp_auto_wrap_policy", "wrap", TEXT),
    Key("fsdp_config.fsdp_activation_checkpointing", "recompute", words({True: "full", False: "none"})),
    Key("fsdp_config.fsdp_offload_params", "offloads", TRUTH),
    Key("parallelism_config.parallelism_config_dp_replicate_size", "copies", COUNT, 1),
    Key("parallelism_config.parallelism_config_dp_shard_size", "shard_degree", WHOLE),
    Key("--per_device_train_batch_size", "samples", always=True),
    Key("--gradient_accumulation_steps", "micro_batches", always=True),
    Key(
        "--gradient_checkpointing",
        "recompute_by_model",
        words({"true": "full", True: "full", "false": "none"}),
        "none",
        others=("--activation_checkpointing",),
    ),
    Key(
        "--optim", "recipe.optimizer.name", words({"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "sgd": "sgd"})
    ),
    Key("--learning_rate", "recipe.optimizer.learning_rate", REAL),
    Key("--weight_decay", "recipe.optimizer.weight_decay", REAL, 0.0),
    Key("--adam_beta1", "beta1", REAL, 0.9),
    Key("--adam_beta2", "beta2", REAL, 0.999),
    Key("--adam_epsilon", "recipe.optimizer.epsilon", REAL, 1e-8),
    Key("--max_grad_norm", "recipe.clip_norm", REAL, 1.0),
    Key("--seed", "recipe.seed", WHOLE, 42),
)


def finish(fields: Fields, given: Given) -> Fields:
    """FSDP or plain data parallelism, and the batch of a step. Raises PlanError for what no plan says."""
    if fields.get("version") == 2 and fields.get("reshard") is False:
        raise PlanError(
            "fsdp_reshard_after_forward: false gathers parameters once a micro-batch, which no state of a plan does; "
            "write true"
        )
    sharded = fields.get("zero", 3) if fields.get("kind", "FSDP") == "FSDP" else 0
    fields = with_replicas(take(fields, zero=sharded), given)
    degree = fields.get("shard_degree")
    if degree not in (None, fields["dp"] // (fields.get("copies") or 1)):
        raise PlanError(f"dp_shard_size {degree} x dp_replicate_size is not the number of processes, {fields['dp']}")
    by = [name for name in ("recompute", "recompute_by_model") if fields.get(name) == "full"]
    if len(by) > 1:
        raise PlanError(
            "fsdp_activation_checkpointing and --gradient_checkpointing are both on, which the Trainer refuses; leave "
            "one of them out"
        )
    return take(
        with_batch(fields),
        recompute="full" if by else "none",
        **offloaded(fields),
        **{"recipe.optimizer.betas": [fields["beta1"], fields["beta2"]]},
    )


def prepare(fields: Fields, inputs: Inputs) -> Fields:
    """What YAML and arguments say of a plan's fields."""
    sharded, copies = fields["zero"] > 0, copies_of(fields)
    said = {
        "environment": "LOCAL_MACHINE",
        "kind": "FSDP" if sharded else "MULTI_GPU",
        "world": inputs.plan.world_size,
        "beta1": fields["recipe.optimizer.betas"][0],
        "beta2": fields["recipe.optimizer.betas"][1],
        "copies": copies,
    }
    if sharded:
        both = fields["offload.parameters"] and fields["offload.optimizer"]
        said |= {"version": 2, "reshard": True, "wrap": "TRANSFORMER_BASED_WRAP", "offloads": both}
        said |= {"shard_degree": parallel(fields, "dp") // copies} if copies > 1 else {}
        return fields | said
    return fields | said | {"recompute": NOTHING, "recompute_by_model": fields["recompute"]}


def _files(values: Values) -> dict[str, str]:
    flags = {name: _word(value) for name, value in values.items() if name.startswith("--")}
    return {
        "accelerate.yaml": write_yaml({name: value for name, value in values.items() if name not in flags}),
        "trainer.args": write_flags(flags),
    }


def _word(value: object) -> object:
    return "true" if value is True else value


def _notes(inputs: Inputs) -> list[str]:
    return ["start with: accelerate launch --config_file accelerate.yaml train.py $(cat trainer.args)"]


ACCELERATE = System(
    name="accelerate",
    release="accelerate 1.15",
    keys=KEYS,
    files=_files,
    finish=finish,
    prepare=prepare,
    notes=_notes,
    kernels="hf-sdpa",
)
