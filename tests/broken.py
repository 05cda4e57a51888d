"""Real documents, and ways to break them; shared by the tests of the readers."""
# ruff: noqa: E501 - documents are quoted as they are

import copy
import math
from collections.abc import Iterator
from typing import Any

PLAN = """\
meshwright_plan: 1
name: two stages
model: {name: gpt2}
cluster: {name: cpu:8, source: null}
recipe: {global_batch: 16, sequence: {tokens: 64}}
micro_batches: 4
schedule: 1f1b
groups:
  a: {devices: 0-3, mesh: {x: 2, y: 2}}
  b: {devices: [4, 5, 6, 7], mesh: {x: 2, y: 2}}
stages:
  - on: a
    layers:
      - {span: embed, roles: {x: dp/zero3, y: tp}}
      - {span: decoder.0-5, roles: {x: dp/zero1, y: tp}, recompute: full}
      - {span: decoder.0-5, part: mlp, roles: {x: dp/zero1, y: tp}, offload: {optimizer: cpu}}
  - on: b
    layers:
      - {span: decoder.6-11, roles: {x: dp/zero1, y: tp+sp}, recompute: {save: [matmul, attention]}}
      - {span: head, roles: {x: dp, y: tp}}
execution: {prefetch: 1, bucket_mib: 25.0, sync: last, kernels: hf-eager}
"""

MODEL = """\
meshwright_model: 1
name: tiny
family: llama
streams: {tokens: {}, audio: {length: 100}}
shared: [rotary]
ties: [{name: embedding, owner: e.weight, copies: [h.weight]}]
stacks:
  - {span: embed, modules: [e], output: 8, parts: [{name: embedding, operators: [{op: embedding, path: e, rows: 64, width: 8}]}]}
  - span: decoder.0-3
    modules: ["d.{i}"]
    reads: [embed]
    side: [embed]
    stream: audio
    output: 8
    parts:
      - name: attention
        operators:
          - {op: norm, kind: batch, width: 8, bias: true}
          - {op: linear, path: "d.{i}.q", inputs: 8, outputs: 8, split: column, segments: [4, 4]}
          - {op: attention, heads: 2, kv_heads: 1, head_dim: 4, window: 16, cross: tokens}
          - {op: dropout, width: 8, probability: 0.1, of: attention}
          - {op: rotary, width: 8}
          - {op: add, width: 8}
      - name: experts
        operators:
          - {op: router, hidden: 8, experts: 4, top_k: 2}
          - {op: experts, count: 4, top_k: 2, hidden: 8, ffn: 16}
          - {op: activation, function: silu, width: 16, gated: true}
          - {op: convolution, inputs: 3, outputs: 8, kernel: [7, 7], positions: 10}
          - {op: scan, width: 8, state: 4}
          - {op: pool, width: 8, positions: 2}
          - {op: parameter, shape: [1, 8]}
  - {span: head, modules: [h], reads: [decoder.3], output: 64, parts: [{name: head, operators: [{op: loss, classes: 64}]}]}
"""

CLUSTER = """\
meshwright_cluster: 1
name: ours
devices:
  big: {memory: 80 GB, memory_bandwidth: 3.35 TB/s, peak: {bf16: 989 TFLOP/s, fp8: 1.9e15}, backend: nccl, source: a data sheet}
  small: {memory: 32000000000, memory_bandwidth: 900 GB/s, peak: {fp16: 125 TFLOP/s}}
links:
  inside: {bandwidth: 450 GB/s, latency: 5 us, reduces: true}
  outside: {bandwidth: 400 Gbit/s, latency: 1e-5}
pools:
  - name: one
    device: big
    levels: [{name: node, size: 8, link: inside}, {name: cluster, size: 4, link: outside, cards: 4}]
    price_per_device_hour: 2.5
  - {name: two, device: small, levels: [{name: node, size: 4, link: inside}], compute_units: 2.0}
across: [{between: [one, two], link: outside, cards: 1}]
"""

RECIPE = """\
meshwright_recipe: 1
global_batch: 64
sequence: {tokens: 512, audio: 100}
precision: {compute: bf16, reduce: fp32, master: fp32, matmul: fp8}
optimizer: {name: adamw, learning_rate: 3e-4, betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1, momentum: 0.0, state: fp32}
clip_norm: 1.0
trainable: {frozen: [embed], lora: {rank: 8, alpha: 16.0, targets: [q_proj]}}
loss: {kind: causal_lm, chunks: 2}
seed: 1
micro_batches: 4
"""

CONFIG = {
    "model_type": "llama",
    "_name_or_path": "tiny",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.1,
}

JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    10**30,
    10**4000,
    1.5,
    1e300,
    1e-300,
    math.nan,
    math.inf,
    "",
    "x",
    "x" * 5000,
    "1e999999999 GB",
    "0-99999999999",
    "0-65535*1+0",
    "decoder.0-999999",
    "decoder.7",
    "dp/zero3",
    "\x1b[31m",
    [],
    [[]],
    ["x"] * 50,
    {},
    {"a": {"b": []}},
    {"": None},
    {1: 2},
)
"""Values that no field expects, or hardly any."""

BROKEN_TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "only a comment": b"# nothing\n",
    "a list": b"[1, 2]",
    "a word": b"plan",
    "not UTF-8": b"meshwright_plan: 1\nname: \xff\xfe\n",
    "UTF-16": "meshwright_plan: 1\n".encode("utf-16"),
    "zeros": bytes(5000),
    "an ELF header": b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 4,
    "10,000 brackets": b"[" * 10_000,
    "a million braces": b"{a: " * 250_000,
    "900 balanced brackets": b"meshwright_plan: " + b"[" * 900 + b"]" * 900,
    "deep indentation": b"".join(b" " * depth + b"a:\n" for depth in range(400)),
    "an alias": b"meshwright_plan: 1\na: &a [x]\nb: *a\n",
    "a billion laughs": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(ord("b"), ord("j"))),
    "an alias to itself": b"&a [*a]",
    "a merge key": b"meshwright_plan: 1\n<<: {name: x}\n",
    "a merge of an alias": b"a: &a {name: x}\nb: {<<: *a}\n",
    "a key twice": b"meshwright_plan: 1\nname: a\nname: b\n",
    "a key that is a list": b"? [a, b]\n: 1\n",
    "a key that is a number": b"meshwright_plan: 1\n5: 6\n",
    "a Python object": b"!!python/object/apply:os.system ['true']",
    "a tag that does not suit": b"meshwright_plan: !!bool maybe",
    "a time": b"meshwright_plan: !!timestamp soon",
    "a set": b"!!set {a, b}",
    "binary": b"meshwright_plan: !!binary aGk=",
    "two documents": b"meshwright_plan: 1\n---\nmeshwright_plan: 1\n",
    "5,000 digits": b"meshwright_plan: " + b"9" * 5000,
    "an exponent": b"meshwright_plan: 1e99999999",
    "a tab": b"meshwright_plan:\n\tname: x",
    "a quote left open": b"name: 'x",
    "a directive": b"%FOO\n---\na: 1",
    "a control character": b"meshwright_plan: 1\nname: a\x07b",
    "an escape": b'meshwright_plan: 1\nname: "\\ud800"',
    "version 2": b"meshwright_plan: 2",
    "the word true": b"meshwright_plan: true",
    "another kind": b"meshwright_recipe: 1\nglobal_batch: 1\nsequence: 1\n",
    "JSON": b'{"meshwright_plan": 1, "name": NaN}',
    "5 MB of one line": b"name: " + b"x" * 5_000_000,
}
"""Files that are no document of ours, by what is wrong."""


def leaves(data: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of every value in a document, containers included."""
    if place:
        yield place
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from leaves(value, (*place, key))


def with_value(data: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """The document with another value at a place."""
    changed = copy.deepcopy(data)
    here = changed
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    return changed


def without(data: Any, place: tuple[str | int, ...]) -> Any:
    """The document without what is at a place."""
    changed = copy.deepcopy(data)
    here = changed
    for step in place[:-1]:
        here = here[step]
    del here[place[-1]]
    return changed
