"""Sizes of the benchmark: the paper's, two for CPUs, a demo of minutes, and a smoke test of seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from ldstyle.messages import did_you_mean
from ldstyle.runs.settings import Settings, complete, merge


@dataclass(frozen=True)
class Preset:
    """Settings that all methods share.

    Attributes:
        name: Short name; records bear it.
        settings: Settings of a run that lie below a method's: image size, backbone, optimizer.
        schedule: Settings that lie above a method's where it has them, since its epochs are meant for the paper's.
        scenes: Synthetic scenes per domain.
        pixels: Side of a synthetic scene in pixels.
    """

    name: str
    settings: Settings = field(default_factory=dict)
    schedule: Settings = field(default_factory=dict)
    scenes: int = 1000
    pixels: int = 256


_PRESETS = (
    Preset("paper"),
    Preset(
        "small",
        settings={
            "data": {"size": 128},
            "backbone": {"name": "tf_efficientnet_lite0", "weights": "efficientnet_lite0", "output_stride": 16},
            "optimizer": {"epochs": 15},
        },
        schedule={"style": {"warmup_epochs": 3, "attention": {"refresh_every": 3}}, "swad": {"evaluate_every": 50}},
        scenes=600,
        pixels=128,
    ),
    Preset(
        "study",  # as short as it can be with plain training's source validation nearly flat at its end
        settings={
            "data": {"size": 112},
            "backbone": {
                "name": "tf_efficientnet_lite0",
                "weights": "efficientnet_lite0",
                "output_stride": 16,
                "channels_last": True,
            },
            # The paper's learning rates are for a hundred epochs; these were better for ERM's source validation.
            "optimizer": {"epochs": 6, "steps_per_epoch": 30, "backbone_lr": 1.5e-3, "head_lr": 5e-3},
        },
        # SWAD was published with 30 to 100 validations per run; with one in each of 6 epochs it finds no valley.
        schedule={"style": {"warmup_epochs": 1, "attention": {"refresh_every": 2}}, "swad": {"evaluate_every": 5}},
        scenes=600,
        pixels=128,
    ),
    Preset(
        "bigearthnet",  # patches of 120 px; many more images than the paper's data, so fewer epochs of bounded length
        settings={
            "data": {"size": 120},
            "optimizer": {"epochs": 30, "steps_per_epoch": 500, "batch_size": 64},
        },
        schedule={"style": {"warmup_epochs": 5, "attention": {"refresh_every": 5}}},
    ),
    Preset(
        "demo",  # the study's learning rates; source validation moved by at most 1.6 points of mAP in the last epoch
        settings={
            "data": {"size": 80},
            "backbone": {
                "name": "tf_efficientnet_lite0",
                "weights": "efficientnet_lite0",
                "output_stride": 16,
                "channels_last": True,
            },
            "optimizer": {"epochs": 6, "steps_per_epoch": 12, "backbone_lr": 1.5e-3, "head_lr": 5e-3},
        },
        schedule={"style": {"warmup_epochs": 1, "attention": {"refresh_every": 2}}, "swad": {"evaluate_every": 3}},
        scenes=400,
        pixels=128,
    ),
    Preset(
        "smoke",
        settings={
            "data": {"size": 32},
            "backbone": {"name": "test_resnet", "weights": "none"},
            "optimizer": {"epochs": 2, "steps_per_epoch": 4, "batch_size": 16},
        },
        schedule={
            "style": {"warmup_epochs": 1, "attention": {"refresh_every": 1}},
            "swad": {"n_converge": 1, "n_tolerance": 2, "evaluate_every": 2},
        },
        scenes=60,
        pixels=64,
    ),
)
PRESETS = {preset.name: preset for preset in _PRESETS}
"""``paper``: ResNet-50 at 224 px. ``small``: EfficientNet-Lite0 at 128 px. ``study``: the same at 112 px, minutes on a
CPU. ``bigearthnet``: ResNet-50 at 120 px for leave-one-country-out. ``demo``: minutes. ``smoke``: seconds."""


def load_preset(name: str) -> Preset:
    """Return a preset by name."""
    if name not in PRESETS:
        raise ValueError(
            f"There is no preset {name!r}.{did_you_mean(name, PRESETS)} Choose from: {', '.join(PRESETS)}."
        )
    return PRESETS[name]


def apply_preset(preset: Preset, method: Settings) -> Settings:
    """Lay a method's settings over a preset's, and the preset's schedule over those that the method has."""
    return merge(preset.settings, apply_schedule(preset, method))


def apply_schedule(preset: Preset, method: Settings) -> Settings:
    """Lay a preset's schedule over a method's settings, where the method has them."""
    return merge(method, _common(preset.schedule, complete(method)))


def _common(schedule: Settings, method: Settings) -> Settings:
    """Keep the schedule that applies to the method: plain training has no warm-up, learned attention no refresh."""
    kept: Settings = {}
    for key, value in schedule.items():
        if not isinstance(value, dict):
            # A method without warm-up has maps from the start, however long the training.
            wanted = key in method and not (key == "warmup_epochs" and method[key] == 0)
            kept |= {key: value} if wanted else {}
        elif isinstance(method.get(key), dict):
            kept[key] = _common(value, method[key])
    return kept
