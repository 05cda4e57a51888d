"""What attention cores keep and move, kernel by kernel.

Two samples of five positions in bf16, four heads of 3 numbers over two KV heads: 120 queries and outputs, 60 keys and
values (120 where copied for every head), 40 rows of 5 scores. Flash keeps its inputs and 4 bytes a row, 2 x 240 + 4 x
40, and moves 2 (240 + 120) (Dao 2022, theorem 1 and algorithm 1). A fused core keeps 2 bytes a score beside copied
inputs, 2 x 200 + 2 x 360 (Korthikanti 2022, section 4.1: 2 a s^2 b for the softmax); an eager one casts them to float32
and back, 200 (4 + 2) + 2 x 360; plain arithmetic is float32 throughout, 4 x 200 + 4 x 360. Last: what selective
recompute computes again.

>>> from meshwright.model.work import Work
>>> op = Attention(heads=4, kv_heads=2, head_dim=3)
>>> share = Share(op, Work(samples=2, length=5, context=5), learns=False, passes=True, keys=5)
>>> def used(kernel):
...     return tuple(map(int, kernel(op, share, Storage())[:3]))
>>> used(attention_flash), used(attention_sdpa)
((640, 720, 160), (640, 720, 160))
>>> used(attention_fused), used(attention_eager), used(_attention_math)
((1120, 2560, 400), (1920, 5760, 1200), (2240, 9920, 800))

Compiled, eager attention keeps scores and weights in bf16 and 8 bytes a row, 2 x 2 x 200 + 8 x 40, and on a CPU under
dropout two float32 tensors of scores, a mask, and two numbers and a byte a row, 9 x 200 + 9 x 40.

>>> used(_eager_compiled), used(_math_compiled)
((1840, 3360, 1120), (3600, 9920, 2160))
"""

from typing import NamedTuple

from meshwright.cost.habits import Habits
from meshwright.cost.shares import Share
from meshwright.cost.uses import Storage, Use
from meshwright.model.operators import Attention


class _Core(NamedTuple):
    """Numbers that an attention core works on."""

    queries: float
    keys: float
    values: float
    outputs: float
    scores: float
    """One for each head, position and position that it looks at."""
    rows: float
    """One for each head and position."""

    @property
    def inputs(self) -> float:
        """Queries, keys and values."""
        return self.queries + self.keys + self.values

    @property
    def streamed(self) -> float:
        """What is read and written whatever the kernel."""
        return self.inputs + self.outputs


def _core(op: Attention, share: Share, *, copied: bool) -> _Core:
    """`copied`: keys and values are first copied for every query head, as kernels without grouped heads want them."""
    work, value = share.work, op.value_dim or op.head_dim
    held = work.samples * share.keys * (op.heads if copied else op.kv_heads)
    rows = work.positions * op.heads
    return _Core(rows * op.head_dim, held * op.head_dim, held * value, rows * value, rows * work.context, rows)


def attention_eager(op: Attention, share: Share, storage: Storage) -> Use:
    """Scores: product, scale, mask, softmax, product: each a kernel. The weights that meet the values are kept too,
    where they are not the softmax's own output; so is the tanh that caps scores. A sink is one score more, and the
    largest score's place is kept (gpt-oss).
    """
    core, element, habits = _core(op, share, copied=True), storage.element, storage.habits
    wide = habits.wide_softmax and element != 4
    fused = core.queries + core.keys if share.fused and share.turned and _is_alone(op, habits) else 0.0
    softmax = 4 if habits.wide_softmax else element
    weights = element if wide or share.dropped else 0
    sinks = core.rows * (element + 8) if op.sinks else 0.0
    kept = core.scores * (softmax + weights + (element if op.capped else 0)) + sinks
    scored = storage.wide if habits.wide_scores else element
    passes = (6 + 6 * op.capped) * element + (2 * (element + 4) if wide else 2 * element)
    return Use(
        scored * (core.queries + core.keys) + element * (core.values + fused) + kept,
        core.scores * passes + element * core.streamed,
        kept,
        passing=core.scores * (element + (2 * softmax if wide else element)),
    )


def attention_plain(op: Attention, share: Share, storage: Storage) -> Use:
    """As an eager one, with the softmax in the compute dtype whatever the family (minGPT)."""
    habits = storage.habits._replace(wide_softmax=False, wide_scores=False)
    return attention_eager(op, share, storage._replace(habits=habits))


def attention_flash(op: Attention, share: Share, storage: Storage) -> Use:
    """Queries, keys, values and one number a row; the output is kept as the next matrix's input, or besides where that
    keeps it narrow.
    """
    core = _core(op, share, copied=False)
    kept = storage.wide * core.rows + (storage.element * core.outputs if storage.narrow else 0.0)
    return Use(storage.element * core.inputs + kept, storage.element * core.streamed, kept)


def attention_flash_copied(op: Attention, share: Share, storage: Storage) -> Use:
    """As `attention_flash`, where several samples lie side by side position by position, and the kernel wants one after
    the other: what it put out stays beside the copy that the next matrix reads.
    """
    use = attention_flash(op, share, storage)
    copied = storage.element * _core(op, share, copied=False).outputs if share.work.samples > 1 else 0.0
    return use._replace(kept=use.kept + copied, moved=use.moved + 2 * copied)


def attention_unpadded(op: Attention, share: Share, storage: Storage) -> Use:
    """As `attention_sdpa`, on queries, keys and values that are picked from the padded ones, each a copy, and put back
    into a tensor of zeros (flash_attn/bert_padding.py, 2023, as llm-foundry's attention.py calls it for every batch).
    """
    core, use = _core(op, share, copied=False), attention_sdpa(op, share, storage)
    return use._replace(moved=use.moved + storage.element * (2 * core.inputs + 3 * core.outputs))


def attention_repeated(op: Attention, share: Share, storage: Storage) -> Use:
    """As `attention_compiled`, on keys and values that are copied for every query head (torchtitan's repeat_kv)."""
    use, few, many = (
        attention_compiled(op, share, storage),
        _core(op, share, copied=False),
        _core(op, share, copied=True),
    )
    copies = few.keys + few.values + many.keys + many.values if op.kv_heads < op.heads else 0.0
    return use._replace(moved=use.moved + storage.element * copies)


def streamed(op: Attention, share: Share, storage: Storage) -> float:
    """Bytes that the core itself reads and writes, whatever its kernel."""
    return storage.element * _core(op, share, copied=False).streamed


def is_math(op: Attention, share: Share, storage: Storage) -> bool:
    """Whether SDPA falls back to plain arithmetic: on CPU under dropout, where a gradient is wanted for the bias of the
    scores, or where values are not as wide as keys; and anywhere for one KV head that nobody has copied.
    """
    if storage.on_cpu and (share.dropped or op.relative or op.value_dim not in (None, op.head_dim)):
        return True
    return storage.habits.own_heads and op.kv_heads == 1 < op.heads


def attention_sdpa(op: Attention, share: Share, storage: Storage) -> Use:
    """Flash attention, unless the family has none or SDPA falls back to plain arithmetic."""
    if not storage.habits.sdpa:
        return attention_eager(op, share, storage)
    if is_math(op, share, storage):
        return _attention_math(op, share, storage)
    return _attention_masked(op, share, storage)


def _attention_math(op: Attention, share: Share, storage: Storage) -> Use:
    """In float32: softmax, and under dropout the mask and the dropped weights."""
    core, wide = _core(op, share, copied=True), storage.wide
    kept = (3 if share.dropped else 1) * wide * core.scores
    return Use(wide * core.inputs + kept, 10 * wide * core.scores + wide * core.streamed, kept)


def _attention_masked(op: Attention, share: Share, storage: Storage) -> Use:
    """A causal flash kernel; where a mask is given, one with a bias for each pair of positions, made anew in each layer
    of a mask of true and false, and keys and values copied for every query head. A slice of a fused matrix's output
    keeps all of that; queries and keys that were turned are tensors of their own besides.
    """
    element, habits = storage.element, storage.habits
    masked = _is_masked(op, share, storage)
    copied = masked and 1 < op.kv_heads < op.heads  # one head is seen by all without a copy
    core = _core(op, share, copied=copied)
    inputs = core.inputs
    if share.fused and share.turned and not copied:
        inputs += core.queries + core.keys
    bias = element * share.work.positions * share.work.context if masked and not op.alibi else 0.0
    kept = storage.wide * core.rows + bias
    laid_out = element * core.outputs if habits.laid_out or _is_alone(op, habits) else 0.0
    moved = element * core.streamed + bias + 2 * laid_out + _put_together(core, share, element)
    return Use(element * inputs + kept + laid_out, moved, kept)


def _put_together(core: _Core, share: Share, element: float) -> float:
    """The gradients of slices of one tensor are read, and written side by side: a third of that, since backward is
    taken to move twice what forward does.
    """
    return 2 * element * core.inputs / 3 if share.fused else 0.0


def _is_alone(op: Attention, habits: Habits) -> bool:
    """Whether each sample's attention is run by itself, on slices of what the matrix before put out, and outputs are
    copied together.
    """
    return habits.image_by_image and not op.causal


def _is_masked(op: Attention, share: Share, storage: Storage) -> bool:
    """Whether SDPA is given a mask. A window as wide as the sequence, or wider, needs none; one's own block does not
    either.
    """
    narrow = op.window is not None and op.window <= share.work.context
    return storage.habits.masks or narrow or op.alibi or op.relative


def attention_compiled(op: Attention, share: Share, storage: Storage) -> Use:
    """As SDPA, but joining a head's rotated part with nothing is left out. Eager attention keeps scores and weights in
    the compute dtype, and for each row the largest score and what the softmax normalised by.
    """
    if not storage.habits.sdpa:
        return _eager_compiled(op, share, storage)
    if storage.on_cpu and share.dropped:
        return _math_compiled(op, share, storage)
    if share.turned == 1:
        storage = storage._replace(habits=storage.habits._replace(laid_out=False))
    return attention_sdpa(op, share, storage)


def _eager_compiled(op: Attention, share: Share, storage: Storage) -> Use:
    core, element = _core(op, share, copied=True), storage.element
    kept = core.scores * 2 * element + core.rows * (8 + op.sinks * (2 * element + 8))
    return Use(element * core.inputs + kept, element * (6 * core.scores + core.streamed), kept)


def _math_compiled(op: Attention, share: Share, storage: Storage) -> Use:
    """Under dropout on CPU: two tensors of scores and a mask of bytes, and what the softmax normalised by."""
    core = _core(op, share, copied=True)
    kept = core.scores * (2 * storage.wide + 1) + core.rows * (2 * storage.wide + 1)
    moved = 10 * storage.wide * core.scores + storage.wide * core.streamed
    return Use(storage.wide * core.inputs + kept, moved, kept)


def attention_fused(op: Attention, share: Share, storage: Storage) -> Use:
    """A fused kernel scales, masks and takes the softmax, and keeps its output: 2 a s^2 b in bf16."""
    core, element = _core(op, share, copied=True), storage.element
    kept = element * core.scores
    moved, passing = element * (4 * core.scores + core.streamed), element * core.scores * (1 + share.dropped)
    return Use(element * core.inputs + kept, moved, kept, passing=passing)
