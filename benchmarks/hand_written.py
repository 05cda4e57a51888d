"""Training steps as one writes them by hand with torch's own parts, for `runtime_vs_torch.py`.

Each takes the whole global batch, as `ParallelModel.forward_backward` does, clips by the true global norm, steps AdamW,
and returns the loss of the whole batch.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

CLIP = 1.0
Batch = Mapping[str, Tensor]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of both sides."""
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def _targets(batch: Batch) -> tuple[Tensor, int]:
    """Each position's next token, and how many count."""
    targets = functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    return targets, int((targets != -100).sum())


def _loss(logits: Tensor, targets: Tensor, tokens: int) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum") / tokens


def _summed(loss: Tensor) -> float:
    dist.all_reduce(loss)
    return float(loss)


class Ddp:
    """DistributedDataParallel; gradients are reduced with the last micro-batch's backward."""

    def __init__(self, module: nn.Module, micro_batches: int) -> None:
        self.module, self.micro_batches = DistributedDataParallel(module), micro_batches
        self.optimizer = adamw(module.parameters())

    def step(self, batch: Batch) -> float:
        """One step."""
        targets, tokens = _targets(batch)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        parts = list(zip(batch["input_ids"].chunk(self.micro_batches), targets.chunk(self.micro_batches), strict=True))
        total = torch.zeros(())
        for number, part in enumerate(parts):
            ids, wanted = (each.chunk(ranks)[rank] for each in part)
            self.module.require_backward_grad_sync = number == self.micro_batches - 1  # what no_sync() sets
            loss = _loss(self.module(input_ids=ids, use_cache=False).logits, wanted, tokens)
            (loss * ranks).backward()  # DDP averages
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return _summed(total)


class Fsdp:
    """FSDP2: each layer and the rest sharded, reduced after each micro-batch."""

    def __init__(self, module: Any, micro_batches: int) -> None:
        self.module, self.micro_batches = module, micro_batches
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in module.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        self.optimizer = adamw(module.parameters())

    def step(self, batch: Batch) -> float:
        """One step."""
        targets, tokens = _targets(batch)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        total = torch.zeros(())
        parts = zip(batch["input_ids"].chunk(self.micro_batches), targets.chunk(self.micro_batches), strict=True)
        for part in parts:
            ids, wanted = (each.chunk(ranks)[rank] for each in part)
            loss = _loss(self.module(input_ids=ids, use_cache=False).logits, wanted, tokens)
            (loss * ranks).backward()  # FSDP2 averages
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return _summed(total)


class DTensorTp:
    """parallelize_module with Megatron's cuts, and a loss on logits that are cut over the vocabulary."""

    def __init__(self, module: Any, micro_batches: int) -> None:
        self.module, self.micro_batches = module, micro_batches
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        plan = dict.fromkeys(columns, ColwiseParallel()) | dict.fromkeys(
            ("self_attn.o_proj", "mlp.down_proj"), RowwiseParallel()
        )
        for layer in module.model.layers:
            parallelize_module(layer, mesh, plan)
        ends = {
            "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
            "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(module, mesh, ends)
        self.kinds = [
            [each for each in module.parameters() if isinstance(each, DTensor) == cut] for cut in (True, False)
        ]
        self.optimizer = adamw([{"params": kind} for kind in self.kinds])

    def step(self, batch: Batch) -> float:
        """One step."""
        targets, tokens = _targets(batch)
        total = torch.zeros(())
        parts = zip(batch["input_ids"].chunk(self.micro_batches), targets.chunk(self.micro_batches), strict=True)
        for ids, wanted in parts:
            with loss_parallel():
                loss = _loss(self.module(input_ids=ids, use_cache=False).logits, wanted, tokens)
                loss.backward()
            total += loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach()
        self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(total)

    def _clip(self) -> None:
        norms = [nn.utils.get_total_norm([each.grad for each in kind]) for kind in self.kinds]
        whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in norms]
        total = torch.stack([each.square() for each in whole]).sum().sqrt()
        for kind in self.kinds:
            nn.utils.clip_grads_with_norm_(kind, CLIP, total)


class _Stage(nn.Module):
    """A run of a Llama's layers, with the embedding on the first rank and the head on the last."""

    def __init__(self, module: Any, rank: int, ranks: int) -> None:
        super().__init__()
        layers = module.model.layers
        each = len(layers) // ranks
        self.embed = module.model.embed_tokens if rank == 0 else None
        self.layers = layers[rank * each : (rank + 1) * each]
        self.rotary = module.model.rotary_emb
        self.norm, self.head = (module.model.norm, module.lm_head) if rank == ranks - 1 else (None, None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) if self.embed is not None else x
        positions = torch.arange(x.shape[1])[None]
        tables = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=tables, position_ids=positions)
        return self.head(self.norm(x)) if self.head is not None and self.norm is not None else x


class OneFOneB:
    """torch.distributed.pipelining's 1F1B over all ranks, a stage on each."""

    def __init__(self, module: nn.Module, micro_batches: int) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.stage = _Stage(module, rank, ranks)
        self.tokens = 1
        stage = PipelineStage(self.stage, rank, ranks, torch.device("cpu"))
        self.schedule = Schedule1F1B(
            stage, micro_batches, loss_fn=lambda out, wanted: _loss(out, wanted, self.tokens), scale_grads=False
        )
        self.first, self.last = rank == 0, rank == ranks - 1
        self.optimizer = adamw(self.stage.parameters())

    def step(self, batch: Batch) -> float:
        """One step."""
        targets, self.tokens = _targets(batch)
        losses: list[Tensor] = []
        if self.first:
            self.schedule.step(batch["input_ids"])
        elif self.last:
            self.schedule.step(target=targets, losses=losses)
        else:
            self.schedule.step()
        square = torch.stack([each.grad.square().sum() for each in self.stage.parameters() if each.grad is not None])
        norm = square.sum()
        dist.all_reduce(norm)
        nn.utils.clip_grads_with_norm_(self.stage.parameters(), CLIP, norm.sqrt())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return _summed(torch.stack(losses).sum().detach() if losses else torch.zeros(()))
