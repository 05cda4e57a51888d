"""A plan in one line."""

from collections import Counter

from meshwright.plan.spec import Placed, Plan, Repeat, Row, Save


def describe_plan(plan: Plan) -> str:
    """What most of its layers do, how it is cut into stages and micro-batches, and what is recomputed.

    As in 'dp/zero1 2, tp+sp 4 on each of 8 stages, interleaved, 16 micro-batches, recompute full, megatron-flash'.
    """
    most = _usual(plan)
    mesh = plan.groups[most.group].mesh
    roles = [f"{role} {mesh[axis]}" for axis, role in most.row.roles.items() if mesh[axis] > 1]
    stages = f" on each of {len(plan.stages)} stages, {plan.schedule}" if len(plan.stages) > 1 else ""
    pieces = f"{plan.micro_batches:,} micro-batch{'es' * (plan.micro_batches != 1)}"
    layers = f"recompute {_recompute(most.row)}, {plan.execution.kernels}"
    return f"{', '.join(roles) or 'one device'}{stages}, {pieces}, {layers}"


def _usual(plan: Plan) -> Placed:
    """A layer of the row that most layers have."""
    row, _ = Counter(id(placed.row) for placed in plan.placed).most_common(1)[0]
    return next(placed for placed in plan.placed if id(placed.row) == row)


def _recompute(row: Row) -> str:
    if isinstance(row.recompute, Repeat):
        return "+".join(row.recompute.repeat)
    return f"all but {'+'.join(row.recompute.save)}" if isinstance(row.recompute, Save) else row.recompute
