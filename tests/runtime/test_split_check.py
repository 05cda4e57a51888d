"""Modules whose cut looks right and is not are refused."""

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.errors import PlanError
from meshwright.model.spec import ModelSpec
from meshwright.train.launch import WorkerPool
from tests.parity.families import FAMILIES
from tests.parity.harness import Case, build, plan_of, recipe_of
from tests.parity.models import spec_of

_OWN = FAMILIES["her own, traced, with dropout"]


def _said_of(case: Case, device: str, spec: ModelSpec) -> str:
    module = build(case).to(device)
    modes = [each.training for each in module.modules()]
    try:
        mw.parallelize(module, plan_of(case), model=spec, recipe=recipe_of(case))
    except PlanError as error:
        return str(error)
    assert modes == [each.training for each in module.modules()][: len(modes)], "a check changes no module's mode"
    return "accepted"


@pytest.mark.parametrize(
    ("family", "device", "said"),
    [
        ("OwnTransformer", "cpu", "accepted"),
        ("OwnTransformer", "meta", "family 'OwnTransformer' is not known, so its cut is tried with values"),
        ("Unknown", "cpu", "under tp 'blocks.0' computes something else than the untouched module; write 'dp' for it"),
        ("Interleaved", "cpu", "under tp 'blocks.0' computes something else than the untouched module"),
    ],
)
def test_a_cut_that_no_proof_covers_is_tried(pool: WorkerPool, family: str, device: str, said: str) -> None:
    case = replace(_OWN, family=family)
    for found in pool.run(_said_of, case, device, spec_of(build(case))):
        assert found.startswith(said), found
