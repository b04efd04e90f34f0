"""The multi-label data sets of torchgeo 0.8, read from their layouts on disk: what an import uses of them, no more.

Tests run on these, and on torchgeo's own classes where it is installed, so that the two stay alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import rasterio
import torch
from PIL import Image

CLASSES = (
    "Urban fabric",
    "Industrial or commercial units",
    "Arable land",
    "Permanent crops",
    "Pastures",
    "Complex cultivation patterns",
    "Land principally occupied by agriculture, with significant areas of natural vegetation",
    "Agro-forestry areas",
    "Broad-leaved forest",
    "Coniferous forest",
    "Mixed forest",
    "Natural grassland and sparsely vegetated areas",
    "Moors, heathland and sclerophyllous vegetation",
    "Transitional woodland, shrub",
    "Beaches, dunes, sands",
    "Inland wetlands",
    "Coastal wetlands",
    "Inland waters",
    "Marine waters",
)
S2 = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")


class DatasetNotFoundError(FileNotFoundError):
    pass


def _stack(folder, stem):
    bands = []
    for name in S2:
        with rasterio.open(Path(folder) / f"{stem}_{name}.tif") as file:
            bands.append(file.read(1, out_shape=(120, 120)))
    return torch.from_numpy(np.stack(bands).astype("float32"))


class BigEarthNetV2:
    valid_splits = ("train", "val", "test")
    class_set = CLASSES

    def __init__(self, root="data", split="train", bands="all", transforms=None, download=False, checksum=False):
        import pandas

        assert split in self.valid_splits, f"split must be one of {self.valid_splits}"
        assert bands in ["s1", "s2", "all"]
        if not (Path(root) / "metadata.parquet").is_file():
            raise DatasetNotFoundError("Dataset not found")
        table = pandas.read_parquet(Path(root) / "metadata.parquet")
        stored = "validation" if split == "val" else split
        self.root, self.metadata_df = Path(root), table[table["split"] == stored].reset_index(drop=True)

    def __len__(self):
        return len(self.metadata_df)

    def __getitem__(self, index):
        row = self.metadata_df.iloc[index]
        tile = "_".join(row["patch_id"].split("_")[:-2])
        label = torch.tensor([name in list(row["labels"]) for name in CLASSES]).long()
        folder = self.root / "BigEarthNet-S2" / tile / row["patch_id"]
        return {"image": _stack(folder, row["patch_id"]), "mask": torch.zeros(1), "label": label}


class BigEarthNet:
    splits_metadata = ("train", "val", "test")
    class_sets: ClassVar[dict[int, list[str]]] = {19: list(CLASSES), 43: [*CLASSES, *map(str, range(24))]}

    def __init__(
        self, root="data", split="train", bands="all", num_classes=19, transforms=None, download=False, checksum=False
    ):
        assert split in self.splits_metadata
        assert num_classes in [43, 19]
        self.num_classes = num_classes
        pairs = [line.split(",") for line in (Path(root) / f"bigearthnet-{split}.csv").read_text().split()]
        self.folders = [{"s2": f"{root}/BigEarthNet-v1.0/{s2}", "s1": s1} for s2, s1 in pairs]

    def __len__(self):
        return len(self.folders)

    def __getitem__(self, index):
        folder = Path(self.folders[index]["s2"])
        (path,) = folder.glob("*.json")
        names = json.loads(path.read_text())["labels"]
        label = torch.tensor([name in names for name in self.class_sets[self.num_classes]]).long()
        return {"image": _stack(folder, folder.name), "label": label}


class TreeSatAI:
    classes = (
        "Abies", "Acer", "Alnus", "Betula", "Cleared", "Fagus", "Fraxinus", "Larix", "Picea", "Pinus", "Populus",
        "Prunus", "Pseudotsuga", "Quercus", "Tilia",
    )  # fmt: skip

    def __init__(
        self,
        root="data",
        split="train",
        sensors=("aerial", "s1", "s2"),
        transforms=None,
        download=False,
        checksum=False,
    ):
        assert set(sensors) <= {"aerial", "s1", "s2"}
        self.root, self.sensors = Path(root), sensors
        self.files = (self.root / f"{split}_filenames.lst").read_text().split()
        self.labels = json.loads((self.root / "labels" / "TreeSatBA_v9_60m_multi_labels.json").read_text())

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        genera = [genus for genus, _ in self.labels[file]]
        sample = {"label": torch.tensor([name in genera for name in self.classes]).long()}
        for sensor in self.sensors:
            with rasterio.open(self.root / sensor / "60m" / file) as raster:
                sample[f"image_{sensor}"] = torch.tensor(raster.read().astype("float32"))
        return sample


class MillionAID:
    splits = ("train", "test")

    def __init__(self, root="data", task="multi-class", split="train", transforms=None, checksum=False):
        assert task in ("multi-class", "multi-label")
        assert split in self.splits
        self.task = task
        paths = sorted((Path(root) / split).rglob("*.jpg"))
        labels = [list(path.relative_to(Path(root) / split).parts[:-1]) for path in paths]
        self.files = [{"image": str(path), "label": label} for path, label in zip(paths, labels, strict=True)]
        self.classes = sorted({name for file in self.files for name in file["label"]})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        with Image.open(file["image"]) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
        return {"image": pixels, "label": torch.tensor([self.classes.index(name) for name in file["label"]])}


def module() -> ModuleType:
    """Return a stand-in of ``torchgeo.datasets``."""
    made = ModuleType("torchgeo.datasets")
    for one in (DatasetNotFoundError, BigEarthNet, BigEarthNetV2, TreeSatAI, MillionAID):
        setattr(made, one.__name__, one)
    return made
