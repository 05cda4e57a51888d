"""Steps from one division to another end where they should, and take what they need."""

from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.divisions import Division, division, missing, steps
from meshwright.plan.spec import Row

MESH = {"a": 2, "b": 3, "c": 2}
rows = st.builds(
    lambda *splits: Row(span="decoder.0", roles=dict(zip(MESH, splits, strict=True))),
    *[st.sampled_from(["dp", "cp", "ulysses", "tp", "tp+sp", "copy"])] * 3,
)


@given(source=rows, target=rows)
def test_the_steps_lead_from_one_division_to_the_other(source: Row, target: Row) -> None:
    here, there = division(source, MESH), division(target, MESH)
    now = here
    for step in steps(MESH, here, there):
        assert step.source == now
        assert step.axes, "somebody takes part"
        lacks = missing(MESH, step.source, step.target)
        assert (lacks == 0) == (step.way == "slice")
        now = step.target
    assert now == there


def test_an_outer_axis_of_the_samples_cannot_turn_by_itself() -> None:
    source, target = Division(("a", "c"), ()), Division(("c",), ("a",))
    assert [(step.way, step.axes) for step in steps(MESH, source, target)] == [("exchange", ("a", "c"))]
