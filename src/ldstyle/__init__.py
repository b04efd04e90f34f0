"""Label-decoupled style augmentation for domain generalization in multi-label image classification.

Train any network that returns one logit per label::

    net = ldstyle.attach(backbone, "ld-efdmix", num_labels=6).train()  # the name of a method, or a config
    output = net(images, labels=labels, domain=domain, epoch=epoch)    # labels: 1, 0, NaN where unknown
    net.loss(output, labels).backward()                                # the method's whole objective

``net.backbone`` stays the plain network: save it, export it, and use it without this package. In eval mode
``net(images)`` is ``net.backbone(images)``.

Names:
    attach, StyledNet            A backbone with style modules at its stages.
    methods()                    The names of all methods.
    insertion_points(backbone)   The stages or submodules that style modules can be attached to.
    LabelDecoupledConfig, GlobalConfig
                                 A method as a config: an operator (MixStyleConfig, EFDMixConfig, CSULiteConfig,
                                 CSUConfig, DSUConfig) and, per label, an attention source (LLAMConfig, GradCamConfig,
                                 UniformConfig).
    StyleContext, StyledOutput   The labels and domains of a batch; the output of a styled network.
    data.Indexed                 Adds the sample index to a data set, for cached attention (``ld-*-gc``).
    functional                   Every equation as a pure function.
    metrics                      Average precision and F1 scores.
    load(path)                   A finished run as a classifier: ``ldstyle.load(path).predict(images)``.

The command ``ldstyle`` trains, evaluates, benchmarks, exports and reports; see ``ldstyle --help``.
"""

# Names are imported on first use, so that `ldstyle --version` and `--help` do not import torch.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ldstyle._version import __version__ as __version__

if TYPE_CHECKING:
    from ldstyle import data, functional, metrics
    from ldstyle.config import (
        CSUConfig,
        CSULiteConfig,
        DSUConfig,
        EFDMixConfig,
        GlobalConfig,
        GradCamConfig,
        LabelDecoupledConfig,
        LLAMConfig,
        MixStyleConfig,
        UniformConfig,
    )
    from ldstyle.deploy.classifier import load
    from ldstyle.method_files import methods
    from ldstyle.nn import InsertionPoint, StyledNet, attach, insertion_points
    from ldstyle.types import Moments, StyleContext, StyledOutput

__all__ = [
    "CSUConfig",
    "CSULiteConfig",
    "DSUConfig",
    "EFDMixConfig",
    "GlobalConfig",
    "GradCamConfig",
    "InsertionPoint",
    "LLAMConfig",
    "LabelDecoupledConfig",
    "MixStyleConfig",
    "Moments",
    "StyleContext",
    "StyledNet",
    "StyledOutput",
    "UniformConfig",
    "attach",
    "data",
    "functional",
    "insertion_points",
    "load",
    "methods",
    "metrics",
]

_PARTS = ("config", "data", "functional", "metrics", "nn", "types", "seeding")
_HOMES = {
    **{name: "config" for name in __all__ if name.endswith("Config")},
    **dict.fromkeys(("InsertionPoint", "StyledNet", "attach", "insertion_points"), "nn"),
    **dict.fromkeys(("Moments", "StyleContext", "StyledOutput"), "types"),
    "load": "deploy.classifier",
    "methods": "method_files",
}


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
