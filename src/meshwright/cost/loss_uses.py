"""What kernels of a loss keep for backward, and what they read and write.

Kept and moved bytes of two samples of five positions in bf16, over 7 classes: 70 log-probabilities in float32, and the
logits where the caller holds them.

>>> from meshwright.model.work import Work
>>> def used(kernel, **facts):
...     work = Work(samples=2, length=5, context=5)
...     operator = Loss(classes=7)
...     return tuple(kernel(operator, Share(operator, work, learns=True, passes=True, **facts), Storage())[:2])
>>> used(loss_eager), used(loss_fused)
((420, 980), (280, 420))

Gathered over two ranks of 7 classes each, twice as many, and the logits of the micro-batch before, 2 (280 + 140) + 280;
by one kernel, these and ten numbers, with two metrics that read and write 2 x 70 (2 + 3 x 4) more, of which a third.

>>> used(loss_gathered, tensor=2), used(loss_xentropy)
((1120, 1960), (180, 793.3333333333334))
"""

from meshwright.cost.shares import Share, elements
from meshwright.cost.uses import Storage, Use
from meshwright.model.operators import Loss


def loss_eager(op: Loss, share: Share, storage: Storage) -> Use:
    """The log-probabilities, mostly in float32 or wider; the caller holds the logits. Read, widened, normalised.
    Backward makes a gradient of the log-probabilities and one of the logits.
    """
    wide = storage.wide if storage.habits.wide_loss else storage.element
    numbers = elements(op, share.work) * op.classes
    held = numbers * storage.element
    return Use(
        numbers * wide + held,
        numbers * (storage.element + 3 * wide),
        held=held,
        passing=2 * numbers * wide,
    )


def loss_cut(op: Loss, share: Share, storage: Storage) -> Use:
    """As `loss_fused` keeps, but kernel by kernel: cast, largest, difference, exponentials, sum, and quotient, which
    backward scales and casts back (megatron/core/tensor_parallel/cross_entropy.py, 2022): 38 and 14 bytes a logit in
    fp16, of which a third counts as forward's here, since backward is taken to move twice as much.
    """
    numbers, wide = elements(op, share.work) * op.classes, storage.wide
    return loss_fused(op, share, storage)._replace(moved=numbers * (2 * storage.element + 12 * wide) / 3)


def loss_joined(op: Loss, share: Share, storage: Storage) -> Use:
    """As `loss_fused` keeps, by a few kernels that each join some of `loss_cut`'s (megatron/core/fusions/
    fused_cross_entropy.py, 2024): widened, the largest, difference and exponentials, their sum, quotient, and in
    backward product and narrowed: 30 and 14 bytes a logit in bf16, of which a third counts as forward's.
    """
    numbers, wide = elements(op, share.work) * op.classes, storage.wide
    return loss_fused(op, share, storage)._replace(moved=numbers * (2 * storage.element + 10 * wide) / 3)


def loss_fused(op: Loss, share: Share, storage: Storage) -> Use:
    """The logits in float32: 4 s b v (Korthikanti 2022, section 4.3)."""
    numbers = elements(op, share.work) * op.classes
    return Use(numbers * storage.wide, numbers * (storage.element + storage.wide))


def loss_gathered(op: Loss, share: Share, storage: Storage) -> Use:
    """As `loss_eager`, of all classes on each tensor rank. The buffers of the pipeline hold the logits of the
    micro-batch before as well (Aleph-Alpha/scaling, 2024: transformer/model/layers/lm_head.py,
    core/nn/pipeline_schedule/train.py).
    """
    use = loss_eager(op.model_copy(update={"classes": op.classes * share.tensor}), share, storage)
    return use._replace(kept=use.kept + use.held, held=2 * use.held)


def loss_xentropy(op: Loss, share: Share, storage: Storage) -> Use:
    """The logits, which the caller holds, and a number a row; backward makes their gradient in the same dtype
    (flash_attn/losses/cross_entropy.py, 2023). Composer takes two metrics of the logits besides, cross entropy and
    perplexity, each of which widens them and makes log-probabilities of them (trainer.py, _eval_train_metrics, and
    metrics/nlp.py, 2023): a third of that counts as forward's here, since backward is taken to move twice as much.
    """
    rows = elements(op, share.work)
    held = rows * op.classes * storage.element
    metrics = 2 * rows * op.classes * (storage.element + 3 * storage.wide)
    return Use(held + 4 * rows, held + metrics / 3, held=held, passing=held)
