"""Rules of other systems: what a plan has that they cannot be told, made from each one's row of `TARGETS`."""

from collections.abc import Callable, Iterator

from meshwright.model.operators import Attention
from meshwright.model.spans import parse_span
from meshwright.plan.numbers import nearest_number, show_mesh
from meshwright.plan.ranks import format_ranks
from meshwright.plan.rule import Finding, Inputs, Rule, Scope, found
from meshwright.plan.sites import Site
from meshwright.plan.spec import STATES, Offload, Save
from meshwright.plan.targets import TARGETS, Target

Check = Callable[[Inputs], Iterator[Finding]]
_HALF = frozenset({"half-matmul", "attention", "collective"})
_FASTER = {"tp": 0, "tp+sp": 0, "ulysses": 1, "cp": 2, "dp": 3, "ep": 3, "copy": 3}
"""Splits by how fast their ranks vary: all systems number the ranks of tp first, and those of dp last."""


def ways_of(inputs: Inputs) -> dict[str, int]:
    """How many ways a plan splits by each word, in the row that does so most."""
    found_ways = {"pp": len(inputs.plan.groups)}
    for split, words in {"tp": ("tp", "tp+sp"), "cp": ("cp",), "ulysses": ("ulysses",), "ep": ("ep",)}.items():
        found_ways[split] = max((site.ways(*words) for site in _whole(inputs, experts=split == "ep")), default=1)
    return found_ways


def _whole(inputs: Inputs, *, experts: bool = False) -> list[Site]:
    return [site for site in inputs.sites if experts or site.row.part is None]


def _numbered(site: Site) -> bool:
    return parse_span(site.row.span)[1] is not None


def _splits(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        for site in inputs.sites:
            for split in dict.fromkeys(role.split for role in site.row.roles.values()):
                if split not in target.splits and not _copied(site, split):
                    yield found(site.where, split=split, nearest=_nearest_split(split, target))

    return check


def _copied(site: Site, split: str) -> bool:
    """Experts that are copied over tp take a part of the sequence each, as it lies there: that is no ulysses."""
    return split == "ulysses" and site.row.part is not None


def _nearest_split(split: str, target: Target) -> str:
    nearest = {"tp+sp": "tp", "cp": "ulysses", "ulysses": "cp"}.get(split, "dp")
    return nearest if nearest in target.splits else "dp"


def _states(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        kept = target.kept and len(inputs.plan.groups) > 1 and inputs.plan.execution.sync == "last"
        states = (*target.states, "zero2") if kept else target.states
        for site in inputs.sites:
            if site.row.state is not None and site.row.state not in states:
                yield found(site.where, state=site.row.state, nearest=_nearest_state(site.row.state, target.states))

    return check


def _nearest_state(state: str, states: tuple[str | None, ...]) -> str:
    """The state that shards most of those that shard no more, or else the least of all; none where that is it."""
    below = [name for name in STATES if name in states and name <= state]
    above = [name for name in STATES if name in states]
    return f"'{below[-1]}'" if below else "no state" if None in states or not above else f"'{above[0]}'"


def _states_beside(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        ways = ways_of(inputs)
        for site in _whole(inputs):
            for split, allowed in target.beside.items():
                wrong = site.row.state not in allowed and (site.row.state is None or site.row.state in target.states)
                if ways[split] > 1 and wrong and _shards(site):
                    fix = _nearest_state(site.row.state or STATES[-1], allowed)
                    yield found(
                        site.where, state=site.row.state or "no state", split=split, ways=ways[split], nearest=fix
                    )

    return check


def _shards(site: Site) -> bool:
    return site.ways("dp", "cp", "ulysses", "copy") > 1


def _apart(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        ways = ways_of(inputs)
        for one, other in target.apart:
            if ways[one] > 1 and ways[other] > 1:
                yield found("groups", one=one, other=other)

    return check


def _one_stage(inputs: Inputs) -> Iterator[Finding]:
    if len(inputs.plan.stages) > 1:
        yield found("stages", stages=len(inputs.plan.stages))


def _schedule(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        if inputs.plan.schedule not in target.schedules and len(inputs.plan.stages) > 1:
            yield found("schedule", schedule=inputs.plan.schedule)

    return check


def _recompute(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        for site in inputs.sites:
            word = site.row.recompute
            if isinstance(word, Save):
                if not (target.operators and set(word.save) == _HALF):
                    yield found(site.where, word="save", nearest=target.recomputes[0])
            elif word not in target.recomputes:
                yield found(site.where, word=word, nearest=target.recomputes[0])

    return check


def _recompute_alike(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        stages = [words for stage in range(len(inputs.plan.stages)) if (words := _words(inputs, stage))]
        kinds = list(dict.fromkeys(word for words in stages for word in words))
        if len(kinds) > 1 and not (target.block and _in_blocks(stages)):
            yield found("stages", words=" and ".join(kinds), most=max(kinds, key=lambda kind: _count(stages, kind)))

    return check


def _words(inputs: Inputs, stage: int) -> list[str]:
    """What each numbered layer of a stage recomputes, in order."""
    found_words: dict[int, str] = {}
    for site in inputs.sites:
        if site.stage == stage and site.row.part is None and _numbered(site):
            word = site.row.recompute if isinstance(site.row.recompute, str) else "save"
            found_words |= dict.fromkeys(parse_span(site.row.span)[1] or (), word)
    return [found_words[index] for index in sorted(found_words)]


def _count(stages: list[list[str]], kind: str) -> int:
    return sum(words.count(kind) for words in stages)


def _in_blocks(stages: list[list[str]]) -> bool:
    """Whether the first so many layers of each stage recompute in full, as many in each or all, and the others none."""
    most = max(words.count("full") for words in stages)
    return all(words == (["full"] * most + ["none"] * len(words))[: len(words)] for words in stages)


def _unlike(inputs: Inputs) -> Iterator[Finding]:
    experts = [site for site in inputs.sites if site.row.part is not None and _of_experts(site)]
    for rows in ([site for site in inputs.sites if site not in experts], experts):
        for other in rows[1:]:
            if _roles(other) != _roles(rows[0]):
                yield found(other.where, span=rows[0].row.span, roles=show_mesh(rows[0].row.roles))


def _of_experts(site: Site) -> bool:
    return all(part.experts for held in site.held for part in held.parts)


def _roles(site: Site) -> tuple[str, ...]:
    """Sizes and roles of the axes, in the mesh's order."""
    mesh, roles = site.group.mesh, site.row.roles
    return tuple(f"{roles[axis]} {mesh[axis]}" for axis in mesh if axis in roles and mesh[axis] > 1)


def _offload(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        for site in inputs.sites:
            for name in Offload.model_fields:
                if getattr(site.row.offload, name) and name not in target.offloads:
                    yield found(site.where, what=name)

    return check


def _order(target: Target) -> Check:
    def check(inputs: Inputs) -> Iterator[Finding]:
        first = 0
        for name, group in inputs.plan.groups.items():
            wanted = tuple(range(first, first + group.size))
            if group.devices != wanted and not (target.interlaced and _interlaced(inputs)):
                yield found(f"groups.{name}.devices", wanted=f"'devices: {format_ranks(wanted)}'")
            first += group.size
        for site in _whole(inputs):
            mesh = site.group.mesh
            ranks = [_FASTER[site.row.roles[axis].split] for axis in mesh if axis in site.row.roles and mesh[axis] > 1]
            if ranks != sorted(ranks, reverse=True):
                yield found(site.where, wanted="the axes in the order dp, cp, ulysses, tp")

    return check


def _interlaced(inputs: Inputs) -> bool:
    """Whether stages vary before dp (Megatron-LM's `--use-tp-pp-dp-mapping`): all groups are one group, shifted."""
    groups = list(inputs.plan.groups.values())
    starts = [group.devices[0] for group in groups]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    shifted = [tuple(device - start for device in group.devices) for group, start in zip(groups, starts, strict=True)]
    return bool(step) and starts == [step * place for place in range(len(groups))] and len(set(shifted)) == 1


def _experts_tp(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        if site.row.part is not None and site.ways("ep") > 1 and site.ways("tp", "tp+sp") > 1:
            yield found(site.where, ways=site.ways("tp", "tp+sp"))


def _experts_without_sp(inputs: Inputs) -> Iterator[Finding]:
    if ways_of(inputs)["ep"] > 1:
        for site in _whole(inputs):
            if site.ways("tp") > 1:
                yield found(site.where)


def _kv_heads(inputs: Inputs) -> Iterator[Finding]:
    for site in _whole(inputs):
        ways = site.ways("tp", "tp+sp")
        for heads in {op.kv_heads for held in site.held for op in held.operators if isinstance(op, Attention)}:
            if heads % ways and ways % heads:
                near = nearest_number(ways, _shared_evenly(heads))
                yield found(site.where, heads=heads, ways=ways, nearest=near)


def _shared_evenly(heads: int) -> Callable[[int], bool]:
    return lambda ways: heads % ways == 0 or ways % heads == 0


def _rules(scope: Scope) -> Iterator[Rule]:
    """Of one system, from its row."""
    target = TARGETS[scope]
    yield from _of_splits(scope, target)
    yield _of_stages(scope, target)
    yield from _of_layers(scope, target)


def _of_splits(scope: Scope, target: Target) -> Iterator[Rule]:
    title = target.title
    yield Rule(f"{scope}-split", scope, _splits(target), f"{title} does not split by '{{split}}'", "write '{nearest}'")
    if set(STATES) - set(target.states):
        yield Rule(f"{scope}-state", scope, _states(target), f"{title} has no '{{state}}'", "write {nearest}")
    if target.beside:
        yield Rule(
            f"{scope}-state-beside",
            scope,
            _states_beside(target),
            f"{title} does not take {{state}} beside {{split}} {{ways}}",
            "write {nearest}",
        )
    if target.apart:
        yield Rule(
            f"{scope}-apart",
            scope,
            _apart(target),
            f"{title} does not take {{one}} and {{other}} together",
            "leave one of the two at 1",
        )


def _of_stages(scope: Scope, target: Target) -> Rule:
    if "pp" in target.splits:
        return Rule(
            f"{scope}-schedule",
            scope,
            _schedule(target),
            f"{target.title} has no schedule '{{schedule}}'",
            f"write {' or '.join(target.schedules)}",
        )
    return Rule(
        f"{scope}-stages",
        scope,
        _one_stage,
        f"{target.title} has no pipelines, and the plan has {{stages}} stages",
        "put all layers on one stage",
    )


def _of_layers(scope: Scope, target: Target) -> Iterator[Rule]:
    title = target.title
    yield Rule(
        f"{scope}-recompute",
        scope,
        _recompute(target),
        f"{title} has no such recompute: '{{word}}'",
        f"write {' or '.join(target.recomputes)}",
    )
    beside = ", or the first so many of each stage alone in full" if target.block else ""
    yield Rule(
        f"{scope}-recompute-alike",
        scope,
        _recompute_alike(target),
        f"{title} recomputes alike in all layers{beside}, and the plan has {{words}}",
        "write 'recompute: {most}' for all",
    )
    yield Rule(
        f"{scope}-layers-alike",
        scope,
        _unlike,
        f"{title} splits all layers alike, and '{{span}}' has other roles",
        "write {roles} for both",
    )
    yield Rule(f"{scope}-offload", scope, _offload(target), f"{title} cannot offload {{what}} alone", "remove it")
    yield Rule(f"{scope}-ranks", scope, _order(target), f"{title} numbers its ranks in another order", "write {wanted}")


TARGET_RULES: tuple[Rule, ...] = (
    *_rules("megatron"),
    *_rules("torchtitan"),
    *_rules("deepspeed"),
    *_rules("accelerate"),
    Rule(
        "megatron-experts-sp",
        "megatron",
        _experts_without_sp,
        "Megatron-LM trains experts that are spread beside tp with sequence parallelism alone",
        "write 'tp+sp'",
    ),
    Rule(
        "megatron-kv-heads",
        "megatron",
        _kv_heads,
        "{heads} KV heads are neither a multiple nor a divisor of tp {ways}, which Megatron-LM asks for",
        "use tp {nearest}",
    ),
    Rule(
        "torchtitan-experts-tp",
        "torchtitan",
        _experts_tp,
        "torchtitan takes the ranks of ep from tp as well, and these experts have tp {ways} of their own",
        "spread them over those ranks too (etp 1)",
    ),
)
