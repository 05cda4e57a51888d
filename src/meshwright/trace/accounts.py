"""Every parameter is counted once: by the operator that uses it in the layer that holds it, or else by itself."""

from collections.abc import Iterable, Mapping

from meshwright.trace.items import Item, Names


def settle(items: Mapping[str, list[Item]], homes: Mapping[str, str], names: Names) -> dict[str, list[str]]:
    """Say for each item whether it counts its parameters (`tied` where another does), and return the parameters that no
    operator of their layer counts. `items` are those of each layer, `homes` the layer that holds each parameter.
    """
    claimed: set[str] = set()
    for name in names.shapes:
        users = [(layer, item) for layer, each in items.items() for item in each if item.weight == name]
        counting = _counting([item for layer, item in users if layer == homes[name]], names.numel(name))
        claimed.update([name] if counting else [])
        for _, item in users:
            item.traits["tied"] = item not in counting
    for name in names.shapes:
        users = [(layer, item) for layer, each in items.items() for item in each if name in item.others]
        parts = [item for layer, item in users if layer == homes[name]]
        counting = _sharing(parts, name, names.numel(name))
        claimed.update([name] if counting else [])
        for _, item in users:
            if item not in counting:
                item.others = tuple(other for other in item.others if other != name)
    left: dict[str, list[str]] = {}
    for name in names.shapes:
        if name not in claimed:
            left.setdefault(homes[name], []).append(name)
    return left


def _counting(local: list[Item], numel: int) -> list[Item]:
    """Of a layer's items with one matrix those that count it: the first that uses all of it, or all with a slice."""
    plain = [item for item in local if not item.traits.get("batched") and item.traits.get("times", 1) == 1]
    whole = [item for item in plain if item.portion == numel]
    if whole:
        return sorted(whole, key=lambda item: not item.traits.get("fed", True))[:1]
    return plain if plain and sum(item.portion for item in plain) == numel else []


def _sharing(local: list[Item], name: str, numel: int) -> list[Item]:
    """The same for biases and gains."""
    local = [item for item in local if item.op != "linear" or _counts_outputs(item)]
    if not local:
        return []
    slices = [item.traits.get("bias", numel) if item.op in ("linear", "convolution") else numel for item in local]
    if slices[0] == numel:
        return local[:1]
    return local if sum(slices) == numel else []


def _counts_outputs(item: Item) -> bool:
    """Whether a matrix's bias is as wide as the outputs that it is written with."""
    return not item.traits.get("batched") and item.traits.get("times", 1) == 1


def tied_products(items: Iterable[Item]) -> None:
    """What has a matrix that is counted elsewhere, and reads what wants no gradient, is a product of which one operand
    wants one; so is a convolution whose kernel is counted elsewhere.
    """
    for item in items:
        if item.op == "linear" and item.traits.get("tied") and not item.traits.get("fed", True):
            item.op, item.learns, item.others = "matmul", 1, ()
            item.fields = {"inner": item.fields["inputs"], "outputs": item.fields["outputs"]}
        if item.op == "convolution" and item.traits.get("tied"):
            taps = item.fields["inputs"] // item.fields["groups"]
            for size in item.fields["kernel"]:
                taps *= size
            item.rows = item.input_rows if item.fields["transposed"] else item.rows
            item.op, item.fields, item.others = "matmul", {"inner": taps, "outputs": item.fields["outputs"]}, ()
            item.learns = 2 if item.traits.get("fed", True) else 1
