"""The programs are right, and what they move is what `cost.volumes` says, to the byte."""

import ast
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from meshwright.train.launch import WorkerPool
from tests.reference import faults
from tests.reference.harness import Case, Counts, Fault, predicted, run
from tests.reference.model import Job

UNCLIPPED = Job(clipped=False)
"""Where all ranks have all gradients, the norm needs no collective. A plan that clips has one all the same."""

CASES: dict[str, Case] = {
    "dp": Case("dp", {"all": "dp"}, UNCLIPPED),
    "zero1": Case("zero1", {"all": "dp/zero1"}),
    "zero2": Case("zero2", {"all": "dp/zero2"}),
    "zero3": Case("zero3", {"all": "dp/zero3"}),
    "zero3, forwards first": Case("zero3", {"all": "dp/zero3"}, Job(forwards_first=True)),
    "tp": Case("tp", {"all": "tp"}),
    "tp+sp": Case("tp_sp", {"all": "tp+sp"}, execution={"kernels": "megatron-flash"}),
    "tp+sp, inputs kept": Case("tp_sp", {"all": "tp+sp"}, Job(gathered_again=False), execution={"kernels": "hf-sdpa"}),
    "pp": Case("pp", {"all": "dp"}, Job(micro_batches=4), {"all": 1}, stages=4),
    "pp, tied": Case("pp", {"all": "dp"}, Job(micro_batches=4, tied=True), {"all": 1}, stages=4),
    "cp": Case("cp", {"all": "cp"}, UNCLIPPED),
    "ulysses": Case("ulysses", {"all": "ulysses"}, UNCLIPPED),
    "ep": Case(
        "ep",
        {"outer": "dp", "inner": "dp"},
        Job(sparse=True),
        {"outer": 2, "inner": 2},
        experts={"outer": "dp", "inner": "ep"},
    ),
}
EXACT = 1e-9


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_program_is_one_process_cut_in_pieces_and_moves_what_was_predicted(pool: WorkerPool, case: Case) -> None:
    for rank, found in enumerate(pool.run(run, case)):
        assert found.kept < EXACT
        assert found.loss is None or found.loss < EXACT
        _compare(found.counts, predicted(case, rank), rank)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradients_may_be_wider_than_parameters(pool: WorkerPool, case: Case) -> None:
    """In bf16, with sums in fp32, whose rounding hides what a step changes: the loss is near, the bytes are exact."""
    case = replace(case, job=replace(case.job, compute=torch.bfloat16, sums=torch.float32))
    for rank, found in enumerate(pool.run(run, case)):
        assert found.loss is None or found.loss < 1e-2
        _compare(found.counts, predicted(case, rank), rank)


def _compare(found: Counts, wanted: Counts, rank: int) -> None:
    assert found == wanted, f"rank {rank}: only moved {found - wanted}, only predicted {wanted - found}"


def test_every_plan_has_a_table_of_its_own() -> None:
    """So that a program cannot fit another one's plan."""
    tables = {frozenset(predicted(case, 0).items()) for case in CASES.values()}
    assert len(tables) == len(CASES)


SHARED = ("pieces", "positions", "ring")
"""Files with collectives that programs share."""


@pytest.mark.parametrize("name", sorted({case.program for case in CASES.values()} | set(SHARED)))
def test_a_program_has_at_most_forty_lines(name: str) -> None:
    """Of code: docstrings and empty lines are free."""
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    prose = [node for node in found if isinstance(node.value, ast.Constant)]
    free = {line for node in prose for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    code = [line for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in free]
    assert 0 < len(code) <= 40


FAULTS: dict[str, tuple[Fault, Case]] = {
    "an all-reduce in two halves": (faults.all_reduce_in_two_halves, CASES["dp"]),
    "gradients in the parameters' dtype": (
        faults.narrow_gradients,
        replace(CASES["dp"], job=replace(UNCLIPPED, compute=torch.float32)),
    ),
    "a gather too many": (faults.gather_twice, CASES["zero3"]),
    "keys and values apart": (faults.keys_and_values_apart, CASES["cp"]),
    "reduced in every micro-batch": (nullcontext, replace(CASES["zero1"], program="zero2")),
    "the last layer gathered again": (
        nullcontext,
        replace(CASES["zero3"], job=Job(forwards_first=True), schedule="1f1b"),
    ),
    "gathered again in backward": (nullcontext, replace(CASES["tp+sp"], execution={"kernels": "hf-sdpa"})),
}


@pytest.mark.parametrize(("fault", "case"), FAULTS.values(), ids=FAULTS.keys())
def test_other_bytes_are_seen(pool: WorkerPool, fault: Fault, case: Case) -> None:
    """The programs stay right, to what float32 allows: only the count can tell."""
    for rank, found in enumerate(pool.run(run, case, fault)):
        assert found.kept < 1e-3
        assert found.counts != predicted(case, rank)


def test_a_wrong_program_is_seen(pool: WorkerPool) -> None:
    """Sums that are made and thrown away: what moves is right, and the loss wrong."""
    case = CASES["tp"]
    for rank, found in enumerate(pool.run(run, case, faults.sums_thrown_away)):
        assert found.counts == predicted(case, rank)
        assert found.loss is not None
        assert found.loss > 1e-3
