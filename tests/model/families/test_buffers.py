"""Tables that are no parameters (rotary frequencies, scales) have a place too."""

import pytest
import torch

from tests.model.samples.build import Sample
from tests.model.samples.dense import DENSE
from tests.model.samples.sparse import SPARSE


@pytest.mark.parametrize("sample", [*DENSE, *SPARSE], ids=lambda sample: sample.name)
def test_every_buffer_is_in_a_layer_or_shared(sample: Sample) -> None:
    with torch.device("meta"):
        module = sample.build()
    spec = sample.spec
    places = [*spec.shared, *(path for layer in spec.layers for path in layer.modules)]
    homeless = [name for name, _ in module.named_buffers() if not any(name.startswith(f"{place}.") for place in places)]
    assert homeless == []
