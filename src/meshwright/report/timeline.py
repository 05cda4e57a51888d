"""A simulated step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is the Trace Event Format's JSON object (Google, 2016): complete events in microseconds, one process a group
of devices with a row for what it computes and one for what it sends, and a counter for its memory.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.cost.estimate import Estimate
from meshwright.cost.simulation import Message, Span, Timeline
from meshwright.errors import MeshwrightError

_COMPUTE, _SEND = 0, 1
_MICRO = 1e6


def trace(found: Estimate) -> dict[str, Any]:
    """The trace of an estimate as plain data."""
    timeline = found.timeline
    names = [each.group for each in found.memory]
    events = [*_names(names), *map(_span, timeline.spans), *_messages(timeline), *_counters(found)]
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"step_time_s": timeline.seconds}}


def write_trace(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write a trace to a file. Raises MeshwrightError where it cannot be written."""
    try:
        Path(path).write_text(json.dumps(data, allow_nan=False), encoding="utf-8")
    except OSError as error:
        raise MeshwrightError(f"{path}: cannot be written: {error.strerror or error}") from None


def _names(groups: Sequence[str]) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(groups):
        yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": f"group {name}"}}
        for row, said in ((_COMPUTE, "compute"), (_SEND, "sends")):
            yield {"ph": "M", "pid": number, "tid": row, "name": "thread_name", "args": {"name": said}}


def _span(span: Span) -> dict[str, Any]:
    once = span.micro_batch is None
    name = span.kind if once else f"{span.kind} {span.micro_batch}"
    facts = {} if once else {"stage": span.stage, "micro_batch": span.micro_batch}
    return _event((span.group, _COMPUTE), name, span.kind, (span.start, span.end)) | {"args": facts}


def _messages(timeline: Timeline) -> Iterator[dict[str, Any]]:
    group_of = {span.stage: span.group for span in timeline.spans}
    for message in timeline.messages:
        sender = message.source if message.forward else message.target
        yield _event((group_of[sender], _SEND), _said(message), "send", (message.start, message.end))


def _said(message: Message) -> str:
    ends = (message.source, message.target) if message.forward else (message.target, message.source)
    what = "activations" if message.forward else "gradients"
    return f"{what} {message.micro_batch}: stage {ends[0]} to {ends[1]}"


def _event(row: tuple[int, int], name: str, kind: str, times: tuple[float, float]) -> dict[str, Any]:
    (group, thread), (start, end) = row, times
    place = {"ph": "X", "pid": group, "tid": thread, "ts": start * _MICRO, "dur": (end - start) * _MICRO}
    return place | {"name": name, "cat": kind}


def _counters(found: Estimate) -> Iterator[dict[str, Any]]:
    """Each group's bytes from the start of each of its actions, and at the end of the step."""
    for group, memory in enumerate(found.memory):
        actions = [span for span in found.timeline.spans if span.group == group and span.micro_batch is not None]
        for span, size in zip(actions, memory.over_time.tolist(), strict=True):
            yield _counter(group, span.start, size)
        end = next(each for each in memory.instants if each.name == "step")
        yield _counter(group, actions[-1].end, end.total)


def _counter(group: int, at: float, size: float) -> dict[str, Any]:
    return {"ph": "C", "pid": group, "name": "memory", "ts": at * _MICRO, "args": {"bytes": size}}
