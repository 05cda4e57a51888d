"""What a rule is: a small object with a scope, a check, a message and a fix."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from meshwright.cluster.spec import Cluster
from meshwright.model.spec import ModelSpec
from meshwright.plan.sites import Site, find_sites
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe

Scope = Literal["meaning", "runtime", "megatron", "torchtitan", "deepspeed", "accelerate"]


class _Given(NamedTuple):
    plan: Plan
    model: ModelSpec
    cluster: Cluster
    recipe: Recipe


class Inputs(_Given):
    """What a plan is checked against: plan, model, cluster, recipe."""

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The rows of the plan with what they hold of the model."""
        return find_sites(self.plan, self.model)

    def length(self, stream: str) -> int | None:
        """Positions per sample of a stream; none where neither model nor recipe says it."""
        known = self.model.streams.get(stream)
        return self.recipe.length(stream, known.length if known else None)


class Finding(NamedTuple):
    """What a check found: where, and the values that its rule's message and fix name."""

    where: str
    values: dict[str, object]


def found(where: str, **values: object) -> Finding:
    """A finding, its values by name."""
    return Finding(where, values)


@dataclass(frozen=True)
class Rule:
    """One rule. `message` and `fix` are templates over the values of a finding."""

    name: str
    scope: Scope
    check: Callable[[Inputs], Iterable[Finding]]
    message: str
    fix: str
    severity: Literal["error", "warning"] = "error"

    def problems(self, inputs: Inputs) -> Iterator["Problem"]:
        """What it has to say of a plan; the same thing once, however many rows it is true of."""
        said: dict[tuple[str, str], list[str]] = {}
        for finding in self.check(inputs):
            text = self.message.format(**finding.values), self.fix.format(**finding.values)
            said.setdefault(text, []).append(finding.where)
        for (message, fix), places in said.items():
            where = places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"
            yield Problem(self.name, self.scope, self.severity, where, message, fix)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a plan: the rule, where, what, and what would mend it."""

    rule: str
    scope: str
    severity: str
    where: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}; {self.fix} [{self.rule}]"
