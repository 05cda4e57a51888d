"""Small models of every family, as transformers builds them: what readers, traces and kernel sets are held to."""

from tests.model.samples.build import Sample
from tests.model.samples.dense import DENSE
from tests.model.samples.sparse import SPARSE
from tests.model.samples.towers import TOWERS

SAMPLES: tuple[Sample, ...] = (*DENSE, *SPARSE, *TOWERS)
