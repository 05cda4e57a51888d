"""What a trace takes, what it leaves alone, and what it says where it cannot."""

import threading

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import meshwright as mw
from meshwright.model.operators import Add, Attention, Linear
from meshwright.model.spec import ModelSpec
from meshwright.trace import trace
from meshwright.trace.errors import TraceError

LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class Block(nn.Module):
    """Causal attention by torch's own function, and an MLP."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 40), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Language(nn.Module):
    """A decoder with a table of positions, and a head that is its embedding."""

    def __init__(self, depth: int = 3, rows: int = 20) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 16), nn.Embedding(rows, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Choosy(nn.Module):
    """Goes on by what it finds in a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # the line
            return self.inner(x)
        return x.new_zeros(1, requires_grad=True)


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 50, shape)


def test_a_module_that_exists_is_left_as_it_is() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    module[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    hooks = [len(each) for each in (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)]
    trace(module, torch.rand(2, 3, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not module.training
    assert not module[0].weight.requires_grad
    assert all(parameter.grad is None for parameter in module.parameters())
    assert hooks == [len(each) for each in (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)]


def test_a_module_a_builder_and_one_on_meta_give_the_same() -> None:
    with torch.device("meta"):
        empty = Language()
    specs = [trace(each, ids(2, 12), name="m") for each in (Language(), Language, empty)]
    assert specs[0] == specs[1] == specs[2]


def test_nothing_is_allocated_for_what_a_builder_builds() -> None:
    spec = trace(lambda: nn.Linear(10**6, 10**6), torch.rand(2, 10**6), name="4 TB")
    assert spec.parameters == 10**12 + 10**6


def test_a_decoder_of_ones_own() -> None:
    spec = trace(Language, ids(2, 12))
    assert [stack.span for stack in spec.stacks] == ["embed", "blocks.0-2", "head"]
    assert spec.stacks[1].modules == ("blocks.{i}",)
    assert [part.name for part in spec.stacks[1].parts] == ["attention", "mlp"]
    assert (spec.streams["tokens"].length, spec.streams["tokens"].limit) == (None, 20)
    core = next(op for op in spec.stacks[1].operators if isinstance(op, Attention))
    assert (core.heads, core.kv_heads, core.head_dim, core.causal) == (2, 2, 8, True)
    assert [(tie.owner, tie.copies) for tie in spec.ties] == [("embed.weight", ("head.weight",))]
    matrices = {op.path: (op.split, op.tied) for stack in spec.stacks for op in stack.operators if op.op == "linear"}
    assert matrices["blocks.{i}.qkv"] == ("column", False)
    assert matrices["blocks.{i}.out"] == ("row", False)
    assert matrices["head"][1]


def test_a_block_that_runs_again_counts_its_work_each_time_and_its_parameters_once() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.block = nn.Embedding(50, 16), Block()

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for _ in range(3):
                x = self.block(x)
            return x

    spec = trace(Again, ids(2, 12))
    assert spec.parameters == sum(parameter.numel() for parameter in Again().parameters())
    assert sum(isinstance(op, Attention) for stack in spec.stacks for op in stack.operators) == 3
    assert sum(op.tied for stack in spec.stacks for op in stack.operators if isinstance(op, Linear)) == 8


def test_modules_that_never_run_are_counted() -> None:
    module = Language(depth=2)
    module.idle = nn.Linear(16, 3)
    spec = trace(module, ids(2, 12))
    assert spec.layer_of("idle.weight") == "head"
    assert spec.parameters == sum(parameter.numel() for parameter in module.parameters())


def test_a_model_of_transformers_needs_no_inputs() -> None:
    spec = mw.model(lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)))
    core = next(op for op in spec.stacks[1].operators if isinstance(op, Attention))
    assert (core.heads, core.kv_heads, core.head_dim, core.causal) == (4, 2, 8, True)
    assert spec.shared == ("model.rotary_emb",)
    assert spec.name


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_kinds_of_attention_are_one_operator(attention: str) -> None:
    config = transformers.LlamaConfig(**LLAMA)
    spec = trace(lambda: transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention), name="m")
    block = spec.stacks[1]
    assert [op.op for op in block.parts[0].operators] == [
        "norm", "linear", "linear", "linear", "rotary", "attention", "linear", "add",
    ]  # fmt: skip
    assert sum(isinstance(op, Add) for op in block.operators) == 2


def test_mw_model_takes_a_module() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    module.example_input_array = torch.rand(3, 4)  # as Lightning modules say it
    assert mw.model(module).parameters == 4 * 8 + 8 + 8 * 2 + 2


def test_a_builder_may_give_inputs() -> None:
    assert isinstance(mw.model(lambda: (nn.Linear(3, 3), torch.rand(2, 3))), ModelSpec)


def test_lengths_that_a_model_does_not_take_are_its_own() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(x.transpose(1, 2))

    free, fixed = trace(nn.Linear(5, 5), torch.rand(2, 12, 5)), trace(Fixed, torch.rand(2, 12, 5))
    assert free.streams["tokens"].length is None
    assert [stream.length for stream in fixed.streams.values()] == [5]


def test_missing_inputs_are_named_with_what_to_write() -> None:
    with pytest.raises(TraceError, match=r"Linear.forward needs 'input'.*inputs=\{\"input\": torch.randn"):
        trace(nn.Linear(2, 2))


def test_a_way_that_depends_on_values_is_named_by_module_and_line() -> None:
    with pytest.raises(TraceError, match=r"test_trace.py:\d+: module '1' \(Choosy\): .* depends on values") as caught:
        trace(lambda: nn.Sequential(nn.Linear(4, 4), Choosy()), torch.rand(2, 4))
    line = int(str(caught.value).split("test_trace.py:")[1].split(":")[0])
    assert "# the line" in open(__file__).read().splitlines()[line - 1]  # noqa: PTH123, SIM115


def test_numbers_of_the_program_itself_are_there() -> None:
    class Guarded(nn.Module):
        """Looks at rates that it computes with tensors, at chance, and whether numbers are as they should be."""

        def __init__(self) -> None:
            super().__init__()
            rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(rate)) for rate in rates)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            mask = torch.ones(x.shape[0]) if mask is None else mask
            for block in self.blocks:
                if torch.rand([]) < 0.4:
                    continue
                x = block(x)
                if not torch.isfinite(x).all() or (mask < 0).any():
                    x = x @ x.T @ x
            return x

    spec = trace(Guarded, torch.rand(2, 4))
    rates = [op.probability for stack in spec.stacks for op in stack.operators if op.op == "dropout"]
    assert rates == [0.25, 0.5]
    assert not any(op.op == "matmul" for stack in spec.stacks for op in stack.operators)


def test_a_module_with_values_is_run_with_them() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Softplus(), Choosy())  # softplus is over 0
    spec = trace(module, torch.rand(2, 4))
    assert [op.path for stack in spec.stacks for op in stack.operators if isinstance(op, Linear)] == ["0", "2.inner"]
    assert all(parameter.grad is None for parameter in module.parameters())


def test_inputs_are_left_as_they_are() -> None:
    class Writes(nn.Module):
        def __init__(self, *, choosy: bool) -> None:
            super().__init__()
            self.table, self.choosy = nn.Embedding(9, 4), choosy

        def forward(self, ids: Tensor) -> Tensor:
            ids[:, 0] = 1
            ids.add_(1)
            found = self.table(ids)
            return found if self.choosy and found.sum() > 1e9 else found * 2

    for choosy in (False, True):
        given = torch.full((2, 3), 5)
        trace(Writes(choosy=choosy), given)
        assert given.eq(5).all()


def test_a_forward_that_fails_is_named_by_module_and_line() -> None:
    with pytest.raises(TraceError, match=r"module '1' \(Linear\) failed in its forward pass: RuntimeError"):
        trace(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4)), torch.rand(2, 4))


def test_a_module_that_cannot_be_copied_is_to_be_built() -> None:
    module = nn.Linear(2, 2)
    module.lock = threading.Lock()
    with pytest.raises(TraceError, match="give a function that builds it"):
        trace(module, torch.rand(2, 2))


def test_a_builder_that_fails_is_named_by_its_line() -> None:
    def build() -> nn.Module:
        raise ValueError("no width")

    with pytest.raises(TraceError, match=r"test_trace.py:\d+: build failed: ValueError: no width"):
        trace(build)
    with pytest.raises(TraceError, match="a int is no torch"):
        trace(3)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="gives a dict, which is no"):
        trace(dict)


def test_work_that_is_not_counted_right_is_said() -> None:
    class Table(nn.Module):
        """An MLP over a table, which all samples share: a ModelSpec counts work by samples."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.rand(9, 6))
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(x) + self.first(self.table).sum()

    with pytest.warns(UserWarning, match=r"counts \d+ matrix FLOPs forward where torch counts \d+"):
        spec = trace(Table, torch.rand(3, 6), name="table")
    assert "where torch counts" in spec.source
