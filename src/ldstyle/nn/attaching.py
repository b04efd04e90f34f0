"""From a backbone and a method to a styled network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ldstyle.config import GradCamConfig, LabelDecoupledConfig, LLAMConfig, StoredAttention, StyleConfig
from ldstyle.method_files import method_style
from ldstyle.nn.backbones.activation_maps import require_sweep
from ldstyle.nn.backbones.head import analyse_head
from ldstyle.nn.backbones.insertion import first_stages, resolve_points
from ldstyle.nn.backbones.probe import default_image_size
from ldstyle.nn.banks import GradCamBank
from ldstyle.nn.styled_net import StyledNet


def attach(
    backbone: nn.Module,
    style: StyleConfig | str,
    *,
    num_labels: int,
    stages: Sequence[int | str] | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    image_size: tuple[int, int] | None = None,
) -> StyledNet:
    """Attach style augmentation to a backbone.

    Args:
        backbone: Any network that returns one logit per label. It is not changed, only owned.
        style: The name of a method, see ``ldstyle.methods()``, or its settings.
        num_labels: Number of labels L.
        stages: Stage numbers of a timm model, or names of submodules of any model; see ``insertion_points``. By default
            the first two.
        num_samples: Number of training samples; needed for cached attention, which is looked up by sample number.
        seed: Seed of the network's own random streams.
        image_size: Height and width of the images, if the backbone does not declare them.

    Returns:
        The styled network. ``net.backbone`` stays the plain backbone.
    """
    style = method_style(style) if isinstance(style, str) else style
    stages = first_stages(backbone, image_size=image_size) if stages is None else stages
    points = resolve_points(backbone, stages, image_size=image_size)
    if not points:
        raise ValueError("`stages` must name at least one insertion point; got none. See insertion_points(backbone).")
    attention = style.attention if isinstance(style, LabelDecoupledConfig) else None
    cams = head = None
    if isinstance(attention, StoredAttention):
        if num_samples is None:
            raise ValueError(
                "`num_samples` must be given for cached attention; got None. Use the training set's length."
            )
        # Without a threshold of its own, a source thresholds maps when it stores them, if at all.
        threshold, saved = getattr(attention, "threshold", 0.0), isinstance(attention, GradCamConfig)
        cams = GradCamBank(num_samples, num_labels, threshold=threshold, saved=saved)
    if isinstance(attention, GradCamConfig) or (isinstance(attention, LLAMConfig) and attention.needs_class_maps):
        head = analyse_head(backbone, image_size=image_size)
    if isinstance(attention, GradCamConfig) and attention.scales != (1.0,):
        require_sweep(backbone, image_size or default_image_size(backbone), scales=attention.scales)
    return StyledNet(backbone, style, points, num_labels=num_labels, seed=seed, cams=cams, head=head)
