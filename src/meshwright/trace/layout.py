"""Which layer each step of a forward pass belongs to, and which layers read which.

Blocks of containers are layers. What runs between them is gathered: modules of one gap that feed each other are one
layer, and so are modules that read nothing and are joined (token and position tables). Steps outside of any module
with parameters go with what they read. In a model without blocks each module with parameters is a layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshwright.trace.tape import Step, Tape, Value
from meshwright.trace.tree import Container, Tree, find_containers, origin, prefixes


@dataclass(slots=True, eq=False)
class Place:
    """A layer in the making."""

    container: Container | None = None
    """Where it is a block of one."""
    block: str = ""
    modules: list[str] = field(default_factory=list)
    """Paths that it covers; of parameters too, where no module that it covers holds them."""
    first: int = 0
    """The step that it begins with."""
    reads: dict["Place", list[Value]] = field(default_factory=dict)
    """What it takes from others."""
    into: "Place | None" = None
    """The place that it was joined to."""
    name: str = ""

    def whole(self) -> "Place":
        """The place that it is a piece of."""
        place = self
        while place.into is not None:
            place = place.into
        return place


class Layout:
    """Places of all steps."""

    def __init__(self, tree: Tree, tape: Tape) -> None:
        self.tree, self.tape = tree, tape
        self.containers = find_containers(tree, tape)
        self._block_of = {block: each for each in self.containers for block in each.blocks}
        self._opened = self._open()
        self._blocks: dict[str, Place] = {}
        self._groups: dict[tuple[int, str], Place] = {}
        self._segment, self._in_block = 0, False
        self._flops_in = {prefix for step in tape.steps if step.flops for prefix in prefixes(step.module)}
        self._sites: dict[str, tuple[str, str]] = {}
        self._step_places: dict[int, Place] = {}
        self._holders: dict[str, Place] = {}
        """Opened modules → the layer that covers their own parameters."""
        self._loose: dict[str, Place] = {}
        """Parameters of opened modules → where they are used first."""
        self.shared: list[str] = []
        for step in tape.steps:
            self._put(step)
        self._hand_on()
        self._edges()
        self._bare_modules()
        self._idle_modules()

    @property
    def places(self) -> list[Place]:
        """All layers, in the order in which they run, those that are read first."""
        found = dict.fromkeys(place.whole() for place in (*self._step_places.values(), *self._loose.values()))
        waiting, ordered = sorted(found, key=lambda place: place.first), list[Place]()
        while waiting:
            ready = next((each for each in waiting if not any(read in waiting for read in each.reads)), waiting[0])
            waiting.remove(ready)
            ordered.append(ready)
        return ordered

    def place(self, serial: int, module: str) -> Place | None:
        """The layer of a step, or of a call by the step that it ended with."""
        found = self._step_places.get(serial)
        if found is None and self._site(module)[0] == "block":
            found = self._blocks.get(self._site(module)[1])
        return found.whole() if found is not None else None

    def maker(self, value: Value) -> Place | None:
        """The layer that made a value."""
        step = origin(value).step
        found = self._step_places.get(step.serial) if step is not None else None
        return found.whole() if found is not None else None

    # ---- where a module stands

    def _open(self) -> set[str]:
        """Modules that are looked into: those around blocks, lists, and modules with nothing but one module inside."""
        around = {prefix for block in self._block_of for prefix in prefixes(block)[:-1]}
        opened = {""} | around
        if not self._block_of:
            here = ""
            while len(below := self._held_children(here)) == 1 and self._held_children(below[0]):
                here = below[0]
                opened.add(here)
        waiting = list(opened)
        while waiting:
            for child in self.tree.children[waiting.pop()]:
                if self.tree.is_uncalled(child) and child not in opened and child not in self._block_of:
                    opened.add(child)
                    waiting.append(child)
        return opened

    def _held_children(self, path: str) -> list[str]:
        own = self.tree.names.of(path)
        return [] if own else [child for child in self.tree.children[path] if self.tree.held[child]]

    def _site(self, module: str) -> tuple[str, str]:
        """('block' | 'unit' | 'bare' | 'open', path) of a module."""
        if module not in self._sites:
            self._sites[module] = self._find_site(module)
        return self._sites[module]

    def _find_site(self, module: str) -> tuple[str, str]:
        for path in prefixes(module):
            if path in self._block_of:
                return "block", path
            if path not in self._opened:
                return ("unit" if self.tree.held[path] else "bare"), path
        return "open", module

    # ---- where a step goes

    def _put(self, step: Step) -> None:
        kind, path = self._site(step.module)
        if kind == "block":
            self._in_block = True
            self._step_places[step.serial] = self._block(path, step)
            return
        if kind == "unit":
            self._leave_block()
            place = self._group(path, step)
            self._step_places[step.serial] = place
            if self._joins(path):
                self._join([place, *self._made_here(step.values)])
            return
        place_or_none = self._follow(step)
        if place_or_none is not None:
            self._step_places[step.serial] = place_or_none

    def _leave_block(self) -> None:
        if self._in_block:
            self._segment, self._in_block = self._segment + 1, False

    def _block(self, path: str, step: Step) -> Place:
        if path not in self._blocks:
            self._blocks[path] = Place(self._block_of[path], path, [path], step.serial)
        return self._blocks[path]

    def _group(self, path: str, step: Step) -> Place:
        key = (self._segment if self._block_of else 0, path)
        if key not in self._groups:
            known = any(path in place.modules for place in self._groups.values())
            self._groups[key] = Place(modules=[] if known or not path else [path], first=step.serial)
        return self._groups[key].whole()

    def _joins(self, unit: str) -> bool:
        """Whether a module becomes one layer with what it reads: between blocks always, else where it has no matrix."""
        return bool(self._block_of) or unit not in self._flops_in

    def _made_here(self, values: Iterable[Value]) -> list[Place]:
        """The groups of this gap that made values."""
        here = {place.whole() for (segment, _), place in self._groups.items() if segment == self._here()}
        return [
            place for value in values if value.learns and (place := self.maker(value)) in here and place is not None
        ]

    def _here(self) -> int:
        return self._segment if self._block_of else 0

    def _join(self, places: list[Place]) -> None:
        wholes = list(dict.fromkeys(place.whole() for place in places))
        first, *others = sorted(wholes, key=lambda place: place.first)
        for other in others:
            other.into = first
            first.modules += [path for path in other.modules if path not in first.modules]

    def _follow(self, step: Step) -> Place | None:
        """A step outside of modules with parameters goes with the latest of what it reads."""
        live = [value for value in step.values if value.learns]
        makers = [(self._serial(value), place) for value in live if (place := self.maker(value)) is not None]
        loose = [name for value in live for name in self._loose_names(value)]
        met = loose and any(value.inputs for value in step.values)
        if not makers and not met and not (step.flops and live):
            return None  # masks, positions, or a parameter that is yet to meet something
        if not makers:
            self._leave_block()
            makers = [(step.serial, self._group("", step))]
        place = max(makers, key=lambda pair: pair[0])[1]
        if len({maker for _, maker in makers}) > 1:
            roots = self._roots(maker for _, maker in makers)
            if len(roots) > 1 and place in roots and (self._block_of or not self._matrices(roots)):
                self._join(roots)
        for name in loose:
            self._hold(name, place.whole())
        return place.whole()

    def _serial(self, value: Value) -> int:
        step = origin(value).step
        return step.serial if step is not None else -1

    def _matrices(self, places: Iterable[Place]) -> bool:
        return any(path in self._flops_in for place in places for path in place.modules)

    def _roots(self, places: Iterable[Place]) -> list[Place]:
        """Of these, the groups of this gap that read nothing so far."""
        here = {place.whole() for (segment, _), place in self._groups.items() if segment == self._here()}
        return [place for place in dict.fromkeys(places) if place in here and not self._reads_something(place)]

    def _reads_something(self, place: Place) -> bool:
        for step in self.tape.steps[place.first :]:
            if step.serial not in self._step_places:
                continue
            if self._step_places[step.serial].whole() is place:
                makers = (self.maker(value) for value in step.values if value.learns)
                if any(maker is not None and maker is not place for maker in makers):
                    return True
        return False

    def _loose_names(self, value: Value) -> list[str]:
        """Parameters of opened modules that a value is made of and that no layer holds."""
        names = [value.parameter] if value.parameter else sorted(value.weights if value.is_weight else ())
        return [name for name in names if self._is_loose(name)]

    def _is_loose(self, name: str) -> bool:
        return self._site(name.rpartition(".")[0])[0] == "open" and name not in self._loose

    def _hold(self, name: str, place: Place) -> None:
        """A parameter of an opened module: its first layer covers that module's own, another one covers the name."""
        self._loose[name] = place
        holder = name.rpartition(".")[0]
        known = self._holders.setdefault(holder, place)
        path = holder if known.whole() is place.whole() else name
        if path not in place.modules:
            place.modules.append(path)

    # ---- what is left when all steps are placed

    def _hand_on(self) -> None:
        """What runs after a block, outside of it, and is read by one layer between blocks alone, is that layer's."""
        readers: dict[int, set[Place | None]] = {}
        for step in reversed(self.tape.steps):
            place = self._step_places.get(step.serial)
            whole = place.whole() if place is not None else None
            if whole is not None and whole.container and self._site(step.module)[0] != "block":
                found = readers.get(step.serial, set())
                if len(found) == 1 and (only := next(iter(found))) is not None and not only.container:
                    self._step_places[step.serial] = whole = only
                    only.first = min(only.first, step.serial)
            for value in step.values if whole is not None else ():
                made = origin(value).step
                if made is not None and value.learns:
                    readers.setdefault(made.serial, set()).add(whole)

    def _edges(self) -> None:
        """Which layer reads which, and of the parameters that only blocks read, layers of their own."""
        for step in self.tape.steps:
            place = self._step_places.get(step.serial)
            if place is None:
                continue
            place = place.whole()
            for value in step.values:
                if not value.learns:
                    continue
                for name in self._loose_names(value):
                    alone = Place(modules=[], first=-1) if place.container else place
                    self._hold(name, alone)
                maker = self.maker(value) or self._holder(value)
                if maker is not None and maker is not place:
                    place.reads.setdefault(maker, []).append(value)

    def _holder(self, value: Value) -> Place | None:
        held = [self._loose[name].whole() for name in sorted(value.weights) if name in self._loose]
        return held[0] if held and value.is_weight else None

    def _bare_modules(self) -> None:
        """Modules without parameters: those whose output several layers read are shared; others go with their layer."""
        users: dict[str, set[Place]] = {}
        covered = {path for place in self.places for path in place.modules}
        for step in self.tape.steps:
            if step.serial not in self._step_places:
                continue
            place = self._step_places[step.serial].whole()
            kind, path = self._site(step.module)
            if kind == "bare" and not place.container and path not in covered:
                place.modules.append(path)
                covered.add(path)
            for made in (value.step for value in step.values):
                if made is not None and made.serial not in self._step_places:
                    kind, path = self._site(made.module)
                    if kind == "bare":
                        users.setdefault(path, set()).add(place)
        self.shared = [path for path, places in users.items() if len(places) > 1]

    def _idle_modules(self) -> None:
        """Modules and parameters that never ran go with the layer that is nearest by path."""
        covered = {path for place in self.places for path in place.modules}
        for name in self.tree.names.shapes:
            holders = prefixes(name)
            if any(path in covered for path in holders) or name in self._loose:
                continue
            path = next((each for each in holders if each in self.tree.modules and each not in self._opened), name)
            self._nearest(name, path).modules.append(path)
            covered.add(path)

    def _nearest(self, name: str, path: str) -> Place:
        """The layer that uses a parameter by another of its names, or the last of those whose paths are most alike."""
        places = self.places
        for alias in self.tree.names.aliases.get(name, ()):
            for place in places:
                if any(each in place.modules for each in prefixes(alias)):
                    return place

        def common(place: Place) -> int:
            return max((len(set(prefixes(each)) & set(prefixes(path))) for each in place.modules), default=-1)

        best = max(common(place) for place in places)
        groups = [place for place in places if common(place) == best]
        return next((place for place in reversed(groups) if place.container is None), groups[-1])
