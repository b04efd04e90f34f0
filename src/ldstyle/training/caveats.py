"""Sentences that warn of a run that is not what its settings say."""

from __future__ import annotations

from collections.abc import Iterator

from ldstyle.training.sources import SourceData


def label_caveats(data: SourceData) -> Iterator[str]:
    """Yield a sentence on labels that cannot be learned from the training samples."""
    labels = data.train.labels
    if data.untrained_labels:
        yield (
            f"No training image has an annotation of {', '.join(data.untrained_labels)}: such labels are not trained, "
            "are predicted as unknown (NaN), and are left out of all scores. Annotate some, or drop their columns."
        )
    known, present = (labels >= 0).any(axis=0), (labels == 1).any(axis=0)
    never = [name for name, one, two in zip(data.vocabulary, known, present, strict=True) if one and not two]
    if never:
        yield f"No training image has {', '.join(never)}: the model learns that such labels are always absent."
