"""Rules of other systems: their words, that their fixes mend, and that uniform plans which they can run pass."""

from typing import Any

import pytest

import meshwright as mw
from meshwright.plan.rules import Scope, check_plan
from meshwright.plan.targets import TARGETS
from tests.plan.models import data_of, llama, mixture
from tests.plan.rule_cases import DELETE, PIPELINE, Case, edited, hold, inputs_of

STATES = {"megatron": "zero1", "torchtitan": "zero3", "deepspeed": "zero3", "accelerate": "zero3"}
FOREIGN = {
    "megatron": ("copy", "dp"),
    "torchtitan": ("ulysses", "cp"),
    "deepspeed": ("cp", "ulysses"),
    "accelerate": ("cp", "dp"),
}
"""A split that it has not, and the nearest that it has."""
MISSING = {
    "megatron": ("zero2", "'zero1'"),
    "torchtitan": ("zero1", "'zero3'"),
    "accelerate": ("zero1", "'zero3'"),
}
EMBED, FIRST, LAST = "plan/stages/0/layers/0", "plan/stages/0/layers/1", "plan/stages/1/layers/0"


def one_stage(state: str | None, mesh: dict[str, int], roles: dict[str, str]) -> dict[str, Any]:
    """All layers on eight devices, alike."""
    roles = {axis: f"{role}/{state}" if state and role != "tp" else role for axis, role in roles.items()}
    rows = [{"span": span, "roles": roles} for span in ("embed", "decoder.0-3", "head")]
    return edited(
        PIPELINE,
        {
            "plan/groups": {"a": {"devices": "0-7", "mesh": mesh}},
            "plan/stages": [{"on": "a", "layers": rows}],
            "plan/micro_batches": 2,
        },
    )


def with_state(state: str | None) -> dict[str, Any]:
    """The pipeline of the tables, with another state."""
    role = f"dp/{state}" if state else "dp"
    edits = {f"plan/stages/{stage}/layers/{row}/roles/dp": role for stage in (0, 1) for row in (0, 1)}
    return edited(PIPELINE, edits)


WIDE = {scope: one_stage(state, {"dp": 8}, {"dp": "dp"}) for scope, state in STATES.items()}
EXPERTS = edited(
    with_state("zero1"),
    {
        "model": data_of(mixture(llama(), experts=8)),
        "plan/stages/1/layers/2": {"span": "decoder.2-3", "part": "experts", "roles": {"dp": "ep", "tp": "tp+sp"}},
    }
    | {f"plan/stages/{stage}/layers/{row}/roles/tp": "tp+sp" for stage in (0, 1) for row in (0, 1)},
)


def cases(scope: str) -> list[Case]:
    """The rules that each system has; about pipelines, those that have them."""
    about_pipelines = {f"{scope}-schedule", f"{scope}-recompute-alike"}
    return [case for case in _cases(scope) if "pp" in TARGETS[scope].splits or case.rule not in about_pipelines]


def _cases(scope: str) -> list[Case]:
    title, target, wide = TARGETS[scope].title, TARGETS[scope], WIDE[scope]
    state, (split, nearest) = STATES[scope], FOREIGN[scope]
    rows = "stages.0.layers"
    return [
        Case(
            f"{scope}-split",
            {f"{EMBED}/roles/dp": f"{split}/{state}"},
            f"{rows}.0 (embed)",
            f"{title} does not split by '{split}'",
            f"write '{nearest}'",
            {f"{EMBED}/roles/dp": f"{nearest}/{state}"},
            wide,
        ),
        Case(
            f"{scope}-schedule",
            {"plan/schedule": "zb-h1"},
            "schedule",
            f"{title} has no schedule 'zb-h1'",
            f"write {' or '.join(target.schedules)}",
            {"plan/schedule": "1f1b"},
            with_state(state),
        ),
        Case(
            f"{scope}-recompute",
            {f"{FIRST}/recompute": {"save": ["matmul"]}},
            f"{rows}.1 (decoder.0-3)",
            f"{title} has no such recompute: 'save'",
            f"write {' or '.join(target.recomputes)}",
            {f"{FIRST}/recompute": "full"},
            wide,
        ),
        Case(
            f"{scope}-recompute-alike",
            {f"{FIRST}/recompute": "full"},
            "stages",
            f"{title} recomputes alike in all layers"
            + (", or the first so many of each stage alone in full" if target.block else "")
            + ", and the plan has full and none",
            "write 'recompute: full' for all",
            {f"{LAST}/recompute": "full"},
            with_state(state),
        ),
        Case(
            f"{scope}-layers-alike",
            {f"{EMBED}/roles/dp": "dp"},
            f"{rows}.1 (decoder.0-3) and 1 more",
            f"{title} splits all layers alike, and 'embed' has other roles",
            "write {dp: dp} for both",
            {f"{FIRST}/roles/dp": "dp", "plan/stages/0/layers/2/roles/dp": "dp"},
            wide,
        ),
        Case(
            f"{scope}-offload",
            {f"{FIRST}/offload": {"activations": "cpu"}},
            f"{rows}.1 (decoder.0-3)",
            f"{title} cannot offload activations alone",
            "remove it",
            {f"{FIRST}/offload": DELETE},
            wide,
        ),
        Case(
            f"{scope}-ranks",
            {"plan/groups/a/devices": "0,2,1,3-7"},
            "groups.a.devices",
            f"{title} numbers its ranks in another order",
            "write 'devices: 0-7'",
            {"plan/groups/a/devices": "0-7"},
            wide,
        ),
    ]


CASES = [
    *(case for scope in TARGETS for case in cases(scope)),
    *(
        Case(
            f"{scope}-state",
            {f"{EMBED}/roles/dp": f"dp/{state}"},
            "stages.0.layers.0 (embed)",
            f"{TARGETS[scope].title} has no '{state}'",
            f"write {nearest}",
            {f"{EMBED}/roles/dp": f"dp/{nearest[1:-1]}"},
            WIDE[scope],
        )
        for scope, (state, nearest) in MISSING.items()
    ),
    Case(
        "accelerate-stages",
        {"plan": with_state("zero3")["plan"]},
        "stages",
        "Accelerate has no pipelines, and the plan has 2 stages",
        "put all layers on one stage",
        {"plan": WIDE["accelerate"]["plan"]},
        WIDE["accelerate"],
    ),
    Case(
        "accelerate-recompute-alike",
        {f"{FIRST}/recompute": "full"},
        "stages",
        "Accelerate recomputes alike in all layers, and the plan has full and none",
        "write 'recompute: full' for all",
        {"plan/stages/0/layers/2/recompute": "full"},
        edited(
            WIDE["accelerate"],
            {
                "plan/stages/0/layers": [
                    {"span": span, "roles": {"dp": "dp/zero3"}}
                    for span in ("embed", "decoder.0-1", "decoder.2-3", "head")
                ]
            },
        ),
    ),
    Case(
        "torchtitan-state-beside",
        {f"{row}/roles": {"dp": "dp", "cp": "cp"} for row in (EMBED, FIRST, "plan/stages/0/layers/2")},
        "stages.0.layers.0 (embed) and 2 more",
        "torchtitan does not take no state beside cp 2",
        "write 'zero3'",
        {f"{row}/roles": {"dp": "dp/zero3", "cp": "cp/zero3"} for row in (EMBED, FIRST, "plan/stages/0/layers/2")},
        one_stage("zero3", {"dp": 4, "cp": 2}, {"dp": "dp", "cp": "cp"}),
    ),
    Case(
        "deepspeed-state-beside",
        {f"{row}/roles/dp": "dp/zero3" for row in (EMBED, FIRST, "plan/stages/0/layers/2")},
        "stages.0.layers.0 (embed) and 2 more",
        "DeepSpeed does not take zero3 beside tp 2",
        "write 'zero2'",
        {f"{row}/roles/dp": "dp/zero2" for row in (EMBED, FIRST, "plan/stages/0/layers/2")},
        one_stage("zero2", {"dp": 4, "tp": 2}, {"dp": "dp", "tp": "tp"}),
    ),
    Case(
        "deepspeed-apart",
        {"plan": with_state("zero1")["plan"]},
        "groups",
        "DeepSpeed does not take pp and tp together",
        "leave one of the two at 1",
        {"plan": WIDE["deepspeed"]["plan"]},
        WIDE["deepspeed"],
    ),
    Case(
        "megatron-ranks",
        {"plan/groups/a/mesh": {"tp": 2, "dp": 4}},
        "stages.0.layers.0 (embed) and 2 more",
        "Megatron-LM numbers its ranks in another order",
        "write the axes in the order dp, cp, ulysses, tp",
        {"plan/groups/a/mesh": {"dp": 4, "tp": 2}},
        one_stage("zero1", {"dp": 4, "tp": 2}, {"dp": "dp", "tp": "tp"}),
    ),
    Case(
        "megatron-experts-sp",
        {f"{LAST}/roles/tp": "tp"},
        "stages.1.layers.0 (decoder.2-3)",
        "Megatron-LM trains experts that are spread beside tp with sequence parallelism alone",
        "write 'tp+sp'",
        {f"{LAST}/roles/tp": "tp+sp"},
        EXPERTS,
    ),
    Case(
        "megatron-kv-heads",
        {"model": data_of(llama(heads=6, kv_heads=3, hidden=48))},
        "stages.0.layers.1 (decoder.0-1) and 1 more",
        "3 KV heads are neither a multiple nor a divisor of tp 2, which Megatron-LM asks for",
        "use tp 1",
        {"model": data_of(llama())},
    ),
    Case(
        "torchtitan-experts-tp",
        {"plan/stages/1/layers/2/roles/dp": "ep"},
        "stages.1.layers.2 (decoder.2-3 experts)",
        "torchtitan takes the ranks of ep from tp as well, and these experts have tp 2 of their own",
        "spread them over those ranks too (etp 1)",
        {"plan/stages/1/layers/2/roles/tp": "ep"},
        edited(EXPERTS, {"plan/stages/1/layers/2/roles/dp": "dp"}),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_says_what_is_wrong_and_its_fix_mends(case: Case) -> None:
    hold(case)


def test_megatron_recomputes_the_first_so_many_layers_of_each_stage() -> None:
    rows = [{"span": span, "roles": {"dp": "dp/zero1", "tp": "tp"}} for span in ("embed", "decoder.0", "decoder.1")]
    more = [{"span": span, "roles": {"dp": "dp/zero1", "tp": "tp"}} for span in ("decoder.2", "decoder.3", "head")]
    block = {"plan/stages/0/layers": rows, "plan/stages/1/layers": more}
    first = {"plan/stages/0/layers/1/recompute": "full", "plan/stages/1/layers/0/recompute": "full"}
    last = {"plan/stages/0/layers/2/recompute": "full", "plan/stages/1/layers/1/recompute": "full"}
    said = [
        [each.rule for each in check_plan(inputs_of(edited(edited(PIPELINE, block), edits)), "megatron")]
        for edits in (first, last)
    ]
    assert said == [[], ["megatron-recompute-alike"]]


def test_torchtitan_keeps_parameters_in_pipelines_that_reduce_gradients_once() -> None:
    once = {"plan/execution": {"sync": "last"}}
    said = [
        [each.rule for each in check_plan(inputs_of(edited(with_state("zero2"), edits)), "torchtitan")]
        for edits in (once, {})
    ]
    assert said == [[], ["torchtitan-state"]]


RECIPE = mw.recipe(global_batch=64, sequence=4096)


@pytest.mark.parametrize(
    ("scope", "model", "cluster", "degrees"),
    [
        ("megatron", "llama-3.1-70b", "8x8xh100", {"tp": 8, "pp": 4, "zero": 1, "sp": True, "recompute": "selective"}),
        ("megatron", "llama-3.1-70b", "8x8xh100", {"tp": 8, "pp": 2, "rank_order": "megatron-pp-dp"}),
        ("megatron", "mixtral-8x7b", "2x8xh100", {"tp": 2, "ep": 8, "etp": 1, "zero": 1, "sp": True}),
        ("torchtitan", "llama-3.1-70b", "8x8xh100", {"tp": 8, "cp": 2, "zero": 3, "sp": True, "recompute": "full"}),
        ("torchtitan", "llama-3.1-70b", "8x8xh100", {"tp": 8, "zero": 3, "shard": 4, "sp": True}),
        ("torchtitan", "mixtral-8x7b", "2x8xh100", {"tp": 2, "ep": 8, "etp": 1, "zero": 3, "sp": True}),
        ("deepspeed", "llama-3.1-8b", "8xh100", {"zero": 3, "ulysses": 4, "recompute": "full"}),
        ("deepspeed", "llama-3.1-8b", "8xh100", {"zero": 1, "pp": 4}),
        ("deepspeed", "llama-3.1-8b", "8xh100", {"zero": 2, "tp": 2}),
        ("accelerate", "llama-3.1-8b", "8xh100", {"zero": 3, "shard": 4, "recompute": "full"}),
    ],
)
def test_what_a_system_runs_today_passes_its_rules(
    scope: Scope, model: str, cluster: str, degrees: dict[str, Any]
) -> None:
    plan = mw.uniform_plan(model, cluster, RECIPE, **degrees)
    assert mw.check(plan, scope=scope, model=model, cluster=cluster, recipe=RECIPE) == []
