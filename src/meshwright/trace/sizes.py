"""Sizes that tell apart: primes that no dimension of a model shares, for samples and for positions."""

from collections.abc import Iterable

from torch import nn

_MOST = 200
_PRIMES = tuple(n for n in range(5, _MOST) if all(n % d for d in range(2, int(n**0.5) + 1)))


def dimensions(module: nn.Module) -> set[int]:
    """Every size that the model's own tensors and configuration have."""
    found = {size for tensor in (*module.parameters(), *module.buffers()) for size in tensor.shape}
    config = getattr(module, "config", None)
    read = getattr(config, "to_dict", None)
    fields = read() if callable(read) else {}
    return found | {value for value in fields.values() if isinstance(value, int) and not isinstance(value, bool)}


def unusual(taken: Iterable[int], *, most: int = _MOST, largest: bool = True) -> int | None:
    """A prime up to `most` that is none of `taken` and divides none of them; none where there is none."""
    known = [size for size in set(taken) if size > 1]
    primes = [prime for prime in _PRIMES if prime <= most]
    for prime in reversed(primes) if largest else primes:
        if all(size % prime for size in known):
            return prime
    near = [prime for prime in primes if prime not in known]
    return near[-1] if near else None
