"""Legality as data. A rule is a small object with a scope, a check, a message and a fix; adding one is a new entry.

Scope `meaning`: the plan has no meaning. Scope `runtime`: ours cannot run it, or it is not proven. Other scopes are
other systems': they cannot be told it (`plan.targets`).
"""

from meshwright.plan.proven import PROVEN_RULES
from meshwright.plan.rule import Finding, Inputs, Problem, Rule, Scope
from meshwright.plan.rules_groups import GROUP_RULES
from meshwright.plan.rules_inputs import INPUT_RULES
from meshwright.plan.rules_layers import LAYER_RULES
from meshwright.plan.rules_roles import ROLE_RULES
from meshwright.plan.rules_runtime import RUNTIME_RULES
from meshwright.plan.rules_schedule import SCHEDULE_RULES
from meshwright.plan.rules_sizes import SIZE_RULES
from meshwright.plan.rules_targets import TARGET_RULES

__all__ = ["RULES", "Finding", "Inputs", "Problem", "Rule", "Scope", "check_plan"]

RULES: tuple[Rule, ...] = (
    *INPUT_RULES,
    *GROUP_RULES,
    *LAYER_RULES,
    *ROLE_RULES,
    *SIZE_RULES,
    *SCHEDULE_RULES,
    *RUNTIME_RULES,
    *PROVEN_RULES,
    *TARGET_RULES,
)
"""Every rule, in the order in which they are worth reading."""


def check_plan(inputs: Inputs, scope: Scope = "meaning") -> list[Problem]:
    """What the rules of a scope have to say. Each includes `meaning`, and ends there where a plan has none."""
    found = [problem for rule in RULES if rule.scope == "meaning" for problem in rule.problems(inputs)]
    if scope == "meaning" or any(problem.severity == "error" for problem in found):
        return found
    return found + [problem for rule in RULES if rule.scope == scope for problem in rule.problems(inputs)]
