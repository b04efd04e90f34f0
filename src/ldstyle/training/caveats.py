"""Sentences that warn of a run that is not what its settings say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ldstyle.training.sources import SourceData


def label_caveats(data: SourceData) -> Iterator[str]:
    """Yield a sentence on labels that cannot be learned from the training samples."""
    labels = data.train.labels
    if data.untrained_labels:
        yield (
            f"No training image has an annotation of {', '.join(data.untrained_labels)}: such labels are not trained, "
            "are predicted as unknown (NaN), and are left out of all scores. Annotate some, or drop their columns."
        )
    absent = (labels >= 0).any(axis=0) & (labels < 1).all(axis=0)
    never = [data.vocabulary[label] for label in np.flatnonzero(absent)]
    if never:
        yield f"No training image has {', '.join(never)}: the model learns that such labels are always absent."
