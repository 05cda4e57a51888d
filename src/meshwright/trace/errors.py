"""Why a model could not be traced, in words that name the module and the line."""

import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from meshwright.errors import MeshwrightError

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
"""What torch raises where a way depends on values that a fake tensor has not."""
_NO_DATA = "its data is not allocated yet"
"""What torch says where a tensor is made of others by their values."""
_HERE, _TORCH = Path(__file__).parent, Path(torch.__file__).parent


class TraceError(MeshwrightError):
    """A module that cannot be traced, or example inputs that do not go with it."""


class ValuesNeededError(TraceError):
    """A module whose way depends on values of tensors."""


def failure(error: Exception, running: str, kind: str) -> TraceError:
    """What went wrong in a forward pass, told for the user: `running` is the module's path, `kind` its class."""
    where = _where(traceback.extract_tb(error.__traceback__))
    module = f"module '{running}' ({kind})" if running else f"the model ({kind})"
    if isinstance(error, DATA_DEPENDENT) or _NO_DATA in str(error):
        op = getattr(error, "func", None)
        said = f" ({op})" if op is not None else ""
        return ValuesNeededError(
            f"{where}: {module}: what it does next depends on values of tensors{said}, which a trace does not have; "
            "write it without .item(), nonzero() or branches on tensors, or give the module itself, with its values, "
            "and example inputs: it is then run as it is"
        )
    return TraceError(f"{where}: {module} failed in its forward pass: {type(error).__name__}: {_first_line(error)}")


def build_failure(error: Exception, name: str) -> TraceError:
    """What went wrong while a function built its module without values."""
    where = _where(traceback.extract_tb(error.__traceback__))
    depends = "; it reads values of tensors, which are not there" if isinstance(error, DATA_DEPENDENT) else ""
    return TraceError(f"{where}: {name} failed: {type(error).__name__}: {_first_line(error)}{depends}")


def _where(frames: Sequence[traceback.FrameSummary]) -> str:
    """The last line that is neither torch's nor ours."""
    own = [frame for frame in frames if not _within(frame.filename, _TORCH) and not _within(frame.filename, _HERE)]
    last = own[-1] if own else frames[-1]
    return f"{last.filename}:{last.lineno}"


def _within(file: str, folder: Path) -> bool:
    return Path(file).is_relative_to(folder)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else "no message"
