"""Train on a custom CSV with two labels and two domains, then evaluate and predict.

Images, CSV and run are written to a temporary folder. Real training uses the same calls with more images, more epochs
and pretrained weights. Runs in a few seconds.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import ldstyle
from ldstyle.data.domains.discovery import read_domains
from ldstyle.evaluation.evaluate import evaluate
from ldstyle.training import BackboneConfig, DataConfig, OptimizerConfig, RunConfig, fit

LABELS = ("roof", "tree")
COLOURS = np.array([[0.7, 0.3, 0.2], [0.2, 0.5, 0.2]])
LIGHT = {"summer": (1.2, 1.1, 0.8), "winter": (0.8, 0.9, 1.1)}
PER_DOMAIN, SIZE = 100, 64


def write_table(folder: Path) -> None:
    """Draw images and write ``labels.csv``: a path, a domain, and a column per label."""
    generator = np.random.default_rng(0)
    (folder / "images").mkdir()
    rows: list[list[str | int]] = [["path", "domain", *LABELS]]
    for domain, light in LIGHT.items():
        for number in range(PER_DOMAIN):
            present = generator.random(len(LABELS)) < 0.5
            pixels = generator.normal(0.5, 0.05, (SIZE, SIZE, 3))
            for label in np.flatnonzero(present):
                top, left = generator.integers(SIZE // 2, size=2)
                pixels[top : top + SIZE // 2, left : left + SIZE // 2] = COLOURS[label]
            path = f"images/{domain}-{number:02d}.png"
            Image.fromarray((255 * np.clip(pixels * light, 0, 1)).astype(np.uint8)).save(folder / path)
            rows.append([path, domain, *map(int, present)])
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def settings(folder: Path) -> RunConfig:
    """Return the settings of a run that takes seconds: a tiny network, small images, few epochs."""
    # One source has no second domain to mix with; a photometric copy of itself is the second domain.
    data = DataConfig(str(folder), ("summer",), size=48, cache_dir=str(folder / "cache"), pseudo_domain=True)
    return RunConfig(
        data,
        out=str(folder / "run"),
        method="ld-efdmix-gc",
        style=ldstyle.LabelDecoupledConfig(ldstyle.EFDMixConfig(), ldstyle.GradCamConfig(), warmup_epochs=2),
        backbone=BackboneConfig("test_resnet", weights="none"),
        optimizer=OptimizerConfig(backbone_lr=1e-2, head_lr=1e-2, batch_size=16, epochs=6),
        logger="none",
        quiet=True,
    )


def main() -> None:
    """Write, read, train on summer, score on winter, predict."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder)
        summer, winter = read_domains(folder)
        for table in (summer, winter):
            counts = ", ".join(f"{n} {label}" for label, n in zip(LABELS, (table.labels == 1).sum(axis=0), strict=True))
            print(f"{table.domain}: {len(table)} images, {counts}")

        config = settings(folder)
        record = fit(config)
        print(f"trained on {', '.join(record.sources)}, epoch {record.selected_epoch} of {record.epochs_run} kept")
        scores = evaluate(config.out, domain="winter")["scores"]
        print(f"winter: mAP {100 * scores['all']['map']:.1f} on all {scores['all']['n']} images")

        shown = [number for number, row in enumerate(winter.labels) if row.sum() == 1][:4]
        found = ldstyle.load(config.out).predict([winter.path(number) for number in shown])
        for number, labels in zip(shown, found.labels, strict=True):
            truth = LABELS[int(winter.labels[number].argmax())]
            print(f"{winter.keys[number]}: {' and '.join(labels) or 'nothing'} found, {truth} there")


if __name__ == "__main__":
    main()
