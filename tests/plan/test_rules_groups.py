"""Rules about groups of devices: their words, and that their fixes mend."""

import pytest

from tests.plan.rule_cases import Case, hold

CASES = [
    Case(
        "devices-are-distinct",
        {"plan/groups/a/devices": "0-2,0"},
        "groups.a.devices",
        "device 0 stands 2 times",
        "write every device once: 0-2",
        {"plan/groups/a/devices": "0-2"},
    ),
    Case(
        "mesh-holds-the-devices",
        {"plan/groups/a/mesh": {"dp": 2, "tp": 4}},
        "groups.a.mesh",
        "a mesh {dp: 2, tp: 4} holds 8, and the number of devices is 4",
        "write {dp: 1, tp: 4}",
        {"plan/groups/a/mesh": {"dp": 1, "tp": 4}},
    ),
    Case(
        "mesh-holds-the-devices",
        {"plan/groups/a/devices": "0-5", "plan/groups/a/mesh": {"x": 2, "dp": 2, "tp": 4}},
        "groups.a.mesh",
        "a mesh {x: 2, dp: 2, tp: 4} holds 16, and the number of devices is 6",
        "write {x: 3, dp: 1, tp: 2}",
        {"plan/groups/a/mesh": {"x": 3, "dp": 1, "tp": 2}},
    ),
    Case(
        "mesh-holds-the-devices",
        {"plan/groups/a/mesh": {}},
        "groups.a.mesh",
        "a mesh {} holds 1, and the number of devices is 4",
        "write {dp: 4}",
        {"plan/groups/a/mesh": {"dp": 4}},
    ),
    Case(
        "devices-are-in-the-cluster",
        {"plan/groups/b/devices": "6-9"},
        "groups.b.devices",
        "cluster '8xh100' has devices 0-7, and not 8-9",
        "use devices out of 0-7",
        {"plan/groups/b/devices": "4-7"},
    ),
    Case(
        "groups-are-disjoint",
        {"plan/groups/b/devices": "3-6"},
        "groups.b.devices",
        "group 'a' has devices 3 too",
        "take them out of one of the two groups",
        {"plan/groups/b/devices": "4-6"},
    ),
    Case(
        "group-has-a-stage",
        {"plan/stages/1/on": "a"},
        "groups.b",
        "no stage is on group 'b'",
        "put a stage on it, or remove it",
        {"plan/stages/1/on": "b"},
    ),
    Case(
        "devices-have-work",
        {"plan/groups/a/devices": "0-1", "plan/groups/b/devices": "4-6"},
        "groups",
        "no group has 2-3,7: 3 of the cluster's 8 devices",
        "add them to a group, or plan for a cluster without them",
        {"plan/groups/a/devices": "0-3", "plan/groups/b/devices": "4-7"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_says_so_and_its_fix_mends(case: Case) -> None:
    hold(case)
