"""Rules about roles: every axis has exactly one, states lie on equal parameters, and nothing is asked in vain."""

from collections import Counter
from collections.abc import Callable, Iterator

from meshwright.errors import nearest
from meshwright.model.operators import (
    Activation,
    Attention,
    Convolution,
    Embedding,
    Experts,
    Linear,
    Norm,
    Operator,
    Pool,
    Scan,
)
from meshwright.model.tensors import has_matrices
from meshwright.plan.numbers import divides, listed, nearest_number, show_mesh
from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.sites import Site
from meshwright.plan.spec import STATEFUL, Offload, Repeat, Role, Save


def _unknown_axis(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        mesh, free = site.group.mesh, [axis for axis in site.group.mesh if axis not in site.row.roles]
        for axis in site.row.roles:
            if axis not in mesh:
                close = nearest(axis, free, 1) or free[:1]
                fix = f"write '{close[0]}'" if close else f"remove '{axis}'"
                yield found(site.where, axis=axis, group=site.on, mesh=show_mesh(mesh), fix=fix)


def _axis_without_role(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        for axis in site.group.mesh:
            if axis not in site.row.roles:
                yield found(site.where, axis=axis, group=site.on, role=_usual_role(inputs, site, axis))


def _usual_role(inputs: Inputs, site: Site, axis: str) -> str:
    """What the other rows on the group do with an axis, most of them."""
    rows = [other.row for other in inputs.sites if other.on == site.on and axis in other.row.roles]
    roles = Counter(str(row.roles[axis]) for row in rows)
    return roles.most_common(1)[0][0] if roles else "dp"


def _state_on_split_parameters(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        for axis, role in site.row.roles.items():
            if role.state and role.split not in STATEFUL:
                yield found(site.where, axis=axis, role=role, split=role.split, state=role.state)


def _two_states(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        stated = {axis: role for axis, role in site.row.roles.items() if role.state}
        states = Counter(str(role.state) for role in stated.values())
        if len(states) > 1:
            [(usual, _)] = states.most_common(1)
            roles = {axis: Role(role.split, usual) for axis, role in stated.items()}
            yield found(site.where, states=listed(states), roles=show_mesh(roles))


def _state_over_one(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        axes = [axis for axis in site.row.state_axes() if axis in site.group.mesh]
        if axes and all(site.group.mesh[axis] == 1 for axis in axes):
            roles = show_mesh({axis: site.row.roles[axis].split for axis in axes})
            yield found(site.where, state=site.row.state, axes=listed(axes), roles=roles)


def _ep_without_experts(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        axes = site.row.axes("ep")
        spread = [part.experts for held in site.held for part in held.parts]
        if not axes or (site.row.part is not None and all(spread)):
            continue
        parts = {part.name for held in site.held for part in held.stack.parts if part.experts}
        what = f"part '{site.row.part}'" if site.row.part else "a layer as a whole"
        fix = f"write 'dp' here, and 'ep' in a row with 'part: {min(parts)}'" if parts else "write 'dp'"
        yield found(site.where, axes=listed(axes), what=what, fix=fix)


def _experts_that_do_not_divide(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        ways = site.ways("ep")
        for count in {part.experts.count for held in site.held for part in held.parts if part.experts}:
            if count % ways:
                near = nearest_number(ways, divides(count))
                yield found(site.where, experts=count, ways=ways, nearest=near)


def _convolution_cut(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.ways("cp", "ulysses") == 1:
            continue
        kinds = {op.op for held in site.held for op in held.operators if isinstance(op, Convolution | Pool)}
        axes = [axis for axis in site.row.axes("cp", "ulysses") if site.group.mesh.get(axis, 1) > 1]
        for kind in sorted(kinds):
            roles = {axis: Role("copy", site.row.roles[axis].state) for axis in axes}
            yield found(site.where, kind=kind, axes=listed(axes), roles=show_mesh(roles))


def _cuttable(operator: Operator) -> bool:
    """Whether tensor parallelism has something to split in it."""
    if isinstance(operator, Linear | Embedding):
        return operator.split is not None
    return isinstance(operator, Attention | Experts | Scan)


def _tp_without_matrices(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.ways("tp") == 1:
            continue
        for held in site.held:
            if held.parts and not any(_cuttable(operator) for operator in held.operators):
                yield found(site.where, layers=held.stack.span, axes=listed(site.row.axes("tp")))


def _saves_nothing(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if isinstance(site.row.recompute, Save) and not site.row.recompute.save:
            yield found(site.where)


def _attention_asked_in_vain(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        asked = site.row.recompute
        if asked == "selective" and site.held and not any(held.attentions for held in site.held):
            yield found(site.where, span=site.row.span)


_REPEATABLE: dict[str, Callable[[Operator], bool]] = {
    "norm": lambda operator: isinstance(operator, Norm),
    "activation": lambda operator: isinstance(operator, Activation | Experts),
    "up-projection": lambda operator: isinstance(operator, Attention) and operator.value_dim is not None,
}
"""By the word of `recompute: {repeat: …}`: what a layer needs for it to do anything."""


def _repeated_in_vain(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        for word in site.row.recompute.repeat if isinstance(site.row.recompute, Repeat) else ():
            operators = [operator for held in site.held for operator in held.operators]
            if operators and not any(map(_REPEATABLE[word], operators)):
                yield found(site.where, word=word, span=site.row.span)


def _offload_in_vain(inputs: Inputs) -> Iterator[Finding]:
    optimizer, precision = inputs.recipe.optimizer, inputs.recipe.precision
    stateless = optimizer.keeps_nothing and precision.master is None
    for site in inputs.sites:
        offload, held = site.row.offload, [op for held in site.held for op in held.operators]
        asked = [name for name in ("optimizer", "parameters") if getattr(offload, name)]
        bare = bool(held) and not any(op.parameters() for op in held)
        for what in asked:
            if bare:
                yield found(site.where, what=what, why="the layers have no parameters")
            elif what == "optimizer" and stateless:
                yield found(site.where, what=what, why=f"{optimizer.name} keeps nothing")


def _offload_to_nowhere(inputs: Inputs) -> Iterator[Finding]:
    """Pools without a host, where a group that offloads has devices."""
    cluster, told = inputs.cluster, dict[str, list[str]]()
    for site in inputs.sites:
        if site.row.offload == Offload():
            continue
        if site.on not in told:
            pools = {cluster.pool_of(rank).name: cluster.pool_of(rank) for rank in _devices(inputs, site)}
            told[site.on] = [name for name, pool in pools.items() if pool.host is None]
        if told[site.on]:
            yield found(site.where, pools=listed(told[site.on]))


def _devices(inputs: Inputs, site: Site) -> list[int]:
    """Those of a site's group that the cluster has."""
    return [rank for rank in site.group.devices if rank < inputs.cluster.size]


def _muon_on_the_host(inputs: Inputs) -> Iterator[Finding]:
    if inputs.recipe.optimizer.name != "muon":
        return
    for site in inputs.sites:
        if site.row.offload.optimizer and any(has_matrices(held.operators) for held in site.held):
            yield found(site.where, span=site.row.span)


ROLE_RULES: tuple[Rule, ...] = (
    Rule(
        "axis-is-known",
        "meaning",
        _unknown_axis,
        "group '{group}' has no axis '{axis}'; its mesh is {mesh}",
        "{fix}",
    ),
    Rule(
        "every-axis-has-a-role",
        "meaning",
        _axis_without_role,
        "axis '{axis}' of group '{group}' has no role",
        "give it one, for example '{axis}: {role}'",
    ),
    Rule(
        "state-needs-equal-parameters",
        "meaning",
        _state_on_split_parameters,
        "axis '{axis}' has role '{role}', but {split} leaves no equal parameters for {state} to shard",
        "write '{axis}: {split}'",
    ),
    Rule(
        "one-state-a-row",
        "meaning",
        _two_states,
        "a row has one state, and this one has {states}",
        "write {roles}",
    ),
    Rule(
        "state-shards",
        "meaning",
        _state_over_one,
        "{state} has no effect: it shards over {axes}, which is one rank",
        "write {roles}",
        "warning",
    ),
    Rule(
        "ep-spreads-experts",
        "meaning",
        _ep_without_experts,
        "axis {axes} has role 'ep', which spreads routed experts, and {what} is more or other than these",
        "{fix}",
    ),
    Rule(
        "experts-divide",
        "meaning",
        _experts_that_do_not_divide,
        "{experts} experts do not divide over {ways} ranks (ep)",
        "spread them over {nearest}",
    ),
    Rule(
        "convolution-keeps-its-sequence",
        "meaning",
        _convolution_cut,
        "axis {axes} cuts the sequence, and a {kind} needs its neighbours' positions",
        "write {roles}",
    ),
    Rule(
        "tp-splits",
        "meaning",
        _tp_without_matrices,
        "tp on axis {axes} has no effect: {layers} has nothing that it splits, so every rank does the same",
        "write 'copy'",
        "warning",
    ),
    Rule(
        "save-names-something",
        "meaning",
        _saves_nothing,
        "an empty 'save' keeps nothing",
        "write 'recompute: full'",
    ),
    Rule(
        "selective-needs-attention",
        "meaning",
        _attention_asked_in_vain,
        "recompute 'selective' has no effect: it is the core attention's, and {span} has none",
        "write 'recompute: none'",
        "warning",
    ),
    Rule(
        "repeat-finds-something",
        "meaning",
        _repeated_in_vain,
        "to repeat '{word}' has no effect: {span} has none",
        "remove it",
        "warning",
    ),
    Rule(
        "offload-moves-something",
        "meaning",
        _offload_in_vain,
        "offload of '{what}' has no effect: {why}",
        "remove it",
        "warning",
    ),
    Rule(
        "muon-steps-on-the-device",
        "meaning",
        _muon_on_the_host,
        "offload of 'optimizer' keeps the momentum of {span} on the host, and muon multiplies it on the device",
        "remove it, or choose the optimizer adamw",
    ),
    Rule(
        "offload-has-a-host",
        "meaning",
        _offload_to_nowhere,
        "the cluster says nothing of the hosts of pool {pools}: neither the time of offload's copies nor the memory "
        "that they fill is counted",
        "give the pool a 'host'",
        "warning",
    ),
)
