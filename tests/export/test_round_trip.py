"""What a system can be told survives going there and back; of the rest, what differs is said."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.cluster.shorthand import parse_cluster
from meshwright.errors import PlanError
from meshwright.export.fields import HALF, equal_experts, fields_of, merged, parallel
from meshwright.export.handing import Handover, export_plan
from meshwright.export.keys import NOTHING
from meshwright.export.systems import SYSTEMS, TARGETS_OF_EXPORT
from meshwright.export.taking import take_in
from meshwright.plan.diff import diff_plans
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.shorthand import uniform_plan
from meshwright.plan.spec import Offload, Plan, Stage
from meshwright.plan.targets import TARGETS
from meshwright.recipe.spec import Recipe
from tests.plan.models import llama, mixture
from tests.plan.strategies import valid_plans

MODELS = (llama(layers=8), mixture(llama(layers=8), experts=8))
Draw = st.DrawFn


@pytest.mark.parametrize(("system", "zero"), [("torchtitan", 3), ("megatron", 1)])
def test_experts_alone_may_have_a_state(system: str, zero: int) -> None:
    """Tensor ranks that hold the same experts shard them, where no two ranks hold the same layers."""
    model, cluster = MODELS[1], parse_cluster("4xh100")
    recipe = Recipe(global_batch=8, sequence=128, optimizer={"learning_rate": 1e-4})
    degrees = {"tp": 4, "ep": 2, "etp": 1, "zero": zero, "sp": True}
    plan = uniform_plan(model, cluster, recipe, **degrees, micro_batches=4, recompute="full")
    assert any(role.state for stage in plan.stages for row in stage.layers for role in row.roles.values())
    done = export_plan(Inputs(plan, model, cluster, recipe), system)
    assert done.reasons == ()


def with_rows(plan: Plan, **update: Any) -> Plan:
    """The plan with something else in every row."""
    stages = tuple(
        Stage(on=stage.on, layers=tuple(row.model_copy(update=update) for row in stage.layers)) for stage in plan.stages
    )
    return plan.model_copy(update={"stages": stages})


def _ways(draw: Draw, name: str, system: str, *sizes: int) -> int:
    return draw(st.sampled_from(sizes)) if name in TARGETS[system].splits else 1


@st.composite
def told(draw: Draw, system: str) -> Inputs:
    """Plans that a system can be told, as uniform plans with what it has beside degrees."""
    target = TARGETS[system]
    ways = {name: _ways(draw, name, system, 1, 2) for name in ("cp", "ulysses")}
    ways |= {"tp": _ways(draw, "tp", system, 1, 2, 4), "pp": _ways(draw, "pp", system, 1, 2, 4)}
    ways["cp"] = 1 if system == "megatron" and ways["ulysses"] > 1 and draw(st.booleans()) else ways["cp"]
    dp = draw(st.sampled_from([1, 2, 4]))
    model = draw(st.sampled_from(MODELS if "ep" in target.splits else MODELS[:1]))
    if model is MODELS[1]:
        ways["ep"] = draw(st.sampled_from([1, 2, 4]))
        ways["etp"] = 1 if ways["ep"] > 1 and target.experts_whole else ways["tp"]
    kinds = ["1f1b", *(["interleaved"] if "interleaved" in target.schedules else [])]
    schedule = draw(st.sampled_from([*kinds, *target.schedules])) if ways["pp"] > 1 else "1f1b"
    virtual = 2 if schedule == "interleaved" else 1
    zero = draw(st.sampled_from([0, *(int(state[-1]) for state in target.states)]))
    equal = dp * ways["cp"] * ways["ulysses"]
    shard = draw(st.sampled_from([None, 2])) if zero and target.replicas and equal > 2 and equal % 2 == 0 else None
    samples, count = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4])) * 2 * ways["pp"]
    recipe = Recipe(
        global_batch=samples * count * dp,
        sequence=128,
        precision=draw(st.sampled_from([{"compute": "bf16"}, {"compute": "fp32"}])),
        optimizer={"learning_rate": draw(st.sampled_from([1e-4, 3e-4]))},
        clip_norm=draw(st.sampled_from([1.0, 0.5, None])),
    )
    recompute = draw(st.sampled_from([*target.recomputes, *(["half"] if target.operators else [])]))
    try:
        plan = uniform_plan(
            model,
            cluster := parse_cluster(f"{math.prod(ways[each] for each in ('tp', 'pp', 'cp', 'ulysses')) * dp}xh100"),
            recipe,
            **ways,
            zero=zero,
            shard=shard,
            sp=ways["tp"] > 1 and "tp+sp" in target.splits and draw(st.booleans()),
            micro_batches=count,
            schedule=schedule,
            virtual=virtual,
            recompute=HALF if recompute == "half" else recompute,
            layers_per_stage=_uneven(draw, system, ways["pp"] * virtual)
            if schedule in ("1f1b", "interleaved")
            else None,
        )
    except PlanError:
        assume(False)
    return _finished(draw, system, Inputs(plan, model, cluster, recipe))


def _uneven(draw: Draw, system: str, stages: int) -> list[int] | None:
    """A cut of eight layers that is not even, for a system that can be told it."""
    if system not in ("megatron", "torchtitan") or stages == 1 or draw(st.booleans()):
        return None
    even = [8 // stages] * stages
    even[0], even[-1] = even[0] - 1, even[-1] + 1
    return even if min(even) > 0 else None


def _finished(draw: Draw, system: str, inputs: Inputs) -> Inputs:
    plan = inputs.plan
    stateful = any(row.state for stage in plan.stages for row in stage.layers)
    if system == "torchtitan" and len(plan.groups) > 1 and stateful:
        plan = plan.model_copy(update={"execution": plan.execution.model_copy(update={"sync": "last"})})
    offloads = {
        "megatron": [Offload(optimizer="cpu")],
        "deepspeed": [Offload(optimizer="cpu")],
        "accelerate": [Offload(optimizer="cpu", parameters="cpu")],
    }
    if plan.stages[0].layers[0].state and system in offloads:
        plan = with_rows(plan, offload=draw(st.sampled_from([Offload(), *offloads[system]])))
    inputs = Inputs(plan, *inputs[1:])
    assume(system != "torchtitan" or _experts_shared(inputs))
    assume(not [each for each in check_plan(inputs, system) if each.severity == "error"])
    return inputs


def _experts_shared(inputs: Inputs) -> bool:
    """Whether what only experts share is sharded: one replica of a model leaves it no other way to hold them."""
    fields = fields_of(inputs)
    equal = parallel(fields, "dp", "cp", "ulysses")
    return fields["zero"] > 0 or equal > 1 or equal_experts(fields, equal) == 1


def taken_back(done: Handover, inputs: Inputs, folder: Path) -> Inputs:
    """The plan and recipe of files that were written, read from a folder again."""
    for old in folder.iterdir():
        old.unlink()
    for name, text in done.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    also: dict[str, Any] = {"sequence": inputs.recipe.sequence, "devices": inputs.plan.world_size}
    return take_in(folder, done.system.name, cluster=inputs.cluster, model=inputs.model, **also).inputs


def without_speed(plan: Plan, other: Plan) -> Plan:
    """With what changes speed alone as in the other plan: files say what they can of it, and that is no promise."""
    kept = other.execution.model_copy(update={"sync": plan.execution.sync})
    return plan.model_copy(update={"execution": kept, "recipe": other.recipe})


@pytest.mark.hypothesis
@pytest.mark.parametrize("system", TARGETS_OF_EXPORT)
def test_every_plan_that_a_system_can_be_told_comes_back_unchanged(system: str, tmp_path: Path) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(inputs=told(system))
    def goes_and_comes(inputs: Inputs) -> None:
        done = export_plan(inputs, system)
        assert done.reasons == ()
        assert done.slowdown is None
        back = taken_back(done, inputs, tmp_path)
        assert diff_plans(inputs.plan, without_speed(back.plan, inputs.plan)) == []
        for name in ("global_batch", "sequence", "clip_norm"):
            assert getattr(back.recipe, name) == getattr(inputs.recipe, name)
        assert back.recipe.precision.compute == inputs.recipe.precision.compute

    goes_and_comes()


@pytest.mark.hypothesis
@pytest.mark.timeout(300)
@pytest.mark.parametrize("system", TARGETS_OF_EXPORT)
def test_any_plan_is_told_whole_or_approximated_with_reasons_or_refused(system: str, tmp_path: Path) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(inputs=valid_plans())
    def is_honest(inputs: Inputs) -> None:
        assume(isinstance(inputs.recipe.sequence, int))
        try:
            done = export_plan(inputs, system)
        except PlanError as error:
            refused = str(error)
            assert TARGETS[system].title in refused
            return
        back = taken_back(done, inputs, tmp_path).plan
        assert diff_plans(done.plan, merged(without_speed(back, done.plan))) == []
        changes = diff_plans(merged(inputs.plan), merged(without_speed(back, inputs.plan)))
        assert bool(done.reasons) == bool(changes) == (done.slowdown is not None)
        assert not [each for each in check_plan(inputs._replace(plan=done.plan), system) if each.severity == "error"]

    is_honest()


WORDS = ("full", "selective", "half", "none", "fp32", "fp16", "bf16", "fp8", "adamw", "sgd", "1f1b", "gpipe", "FSDP")
OTHERS = ("ring", "ulysses", "both", "rope", "RMSNorm", "megatron-pp-dp", 1, 3, 0.5, True, False, (1, 2, 1), [0.9, 0.5])
VALUES = (*WORDS, *OTHERS)
"""What fields can be; a key writes those that it has a word for."""


@pytest.mark.parametrize("system", list(SYSTEMS))
def test_what_a_key_writes_it_reads_again(system: str) -> None:
    silent = []
    for key in (key for key in SYSTEMS[system].keys if not key.old):
        read = 0
        for value in (each for each in VALUES if each != key.default):
            try:
                theirs = key.codec.write(value)
                ours = NOTHING if theirs is NOTHING else key.codec.read(theirs)
            except (ValueError, TypeError, AttributeError):
                continue  # no value of this key
            if ours is not NOTHING and type(ours) is type(value):
                assert ours == value, f"{key.name}: {value} is written as {theirs}, which says {ours}"
                read += 1
        silent += [key.name] * (read == 0)
    assert silent == [], "no value of these goes there and back"
