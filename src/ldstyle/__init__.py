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
    functional, Moments          Every equation as a pure function; the mean and standard deviation that they take.
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
    from ldstyle import data as data
    from ldstyle import functional as functional
    from ldstyle import metrics as metrics
    from ldstyle.config import CSUConfig as CSUConfig
    from ldstyle.config import CSULiteConfig as CSULiteConfig
    from ldstyle.config import DSUConfig as DSUConfig
    from ldstyle.config import EFDMixConfig as EFDMixConfig
    from ldstyle.config import GlobalConfig as GlobalConfig
    from ldstyle.config import GradCamConfig as GradCamConfig
    from ldstyle.config import LabelDecoupledConfig as LabelDecoupledConfig
    from ldstyle.config import LLAMConfig as LLAMConfig
    from ldstyle.config import MixStyleConfig as MixStyleConfig
    from ldstyle.config import UniformConfig as UniformConfig
    from ldstyle.deploy.classifier import load as load
    from ldstyle.method_files import methods as methods
    from ldstyle.nn import InsertionPoint as InsertionPoint
    from ldstyle.nn import StyledNet as StyledNet
    from ldstyle.nn import attach as attach
    from ldstyle.nn import insertion_points as insertion_points
    from ldstyle.types import Moments as Moments
    from ldstyle.types import StyleContext as StyleContext
    from ldstyle.types import StyledOutput as StyledOutput

# Classes are left out, so that `help(ldstyle)` is one page: it would list all methods that they inherit from torch.
__all__ = ["attach", "data", "functional", "insertion_points", "load", "methods", "metrics"]

_PARTS = ("config", "data", "functional", "metrics", "nn", "types", "seeding")
_CONFIGS = ("CSU", "CSULite", "DSU", "EFDMix", "Global", "GradCam", "LLAM", "LabelDecoupled", "MixStyle", "Uniform")
_HOMES = {
    **{f"{name}Config": "config" for name in _CONFIGS},
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
    special = {name for name in globals() if name.startswith("__")} - {"__dir__", "__getattr__"}
    return sorted({*special, *__all__, *_HOMES})
