"""Restyle a synthetic batch with LD-EFDMix, label by label, and print what changed.

Runs in a few seconds: the images are generated, the weights are random, and nothing is downloaded.
"""

from __future__ import annotations

import numpy as np
import timm
import torch
from torch import Tensor

import ldstyle
from ldstyle import functional as LF

LABELS = ("water", "field", "road")
BOXES = ((0, 0, 64, 48), (0, 48, 40, 96), (40, 48, 64, 96))  # top, left, bottom, right of each label's region
PRESENT = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 0, 0]], dtype=torch.bool)
DOMAIN = torch.tensor([0, 1, 0, 1])
LAM = 0.2  # weight of a sample's own values; the partner has the rest


def draw_images(generator: np.random.Generator) -> Tensor:
    """Draw one textured rectangle per present label, (B, 3, 64, 96); each domain has a light of its own."""
    colours = np.array([[0.1, 0.3, 0.8], [0.3, 0.7, 0.2], [0.5, 0.5, 0.5]])
    light = np.array([[1.0, 1.0, 1.0], [1.6, 1.2, 0.7]])
    images = np.full((len(PRESENT), 3, 64, 96), 0.4)
    for image, present, domain in zip(images, PRESENT, DOMAIN, strict=True):
        for label in np.flatnonzero(present):
            top, left, bottom, right = BOXES[label]
            image[:, top:bottom, left:right] = colours[label][:, None, None]
        image += generator.normal(0, 0.1, image.shape)
        image *= light[domain][:, None, None]
    return torch.from_numpy(images).float()


def draw_attention(size: tuple[int, int]) -> Tensor:
    """Draw each label's region on a feature map, strongest in its middle, (B, L, H, W)."""
    attn = torch.zeros(len(LABELS), *size)
    for label, box in enumerate(BOXES):
        top, left, bottom, right = (side * size[0] // 64 for side in box)
        rows, columns = torch.hann_window(bottom - top + 2)[1:-1], torch.hann_window(right - left + 2)[1:-1]
        attn[label, top:bottom, left:right] = 0.1 + rows[:, None] * columns
    return LF.unit_mass(attn.expand(len(PRESENT), -1, -1, -1), PRESENT)


def show_batch(feats: Tensor, attn: Tensor) -> None:
    """Restyle a feature map and print how far each label's style has come to its partner's."""
    partner = LF.match_partners(PRESENT, DOMAIN, priority=torch.arange(len(PRESENT)))
    lam = LF.effective_lambda(torch.full(PRESENT.shape, LAM), PRESENT, partner)
    restyled = LF.mix_topk_values(feats, attn, partner, lam, top_ratio=0.1, background=0.0)
    before, after = LF.label_moments(feats, attn).mean, LF.label_moments(restyled, attn).mean  # (B, L, C)
    print(f"{'image':>5}  {'label':<6} {'partner':>7}  {'distance of styles':>19}  {'locations changed':>17}")
    for image, label in PRESENT.nonzero().tolist():
        changed = (restyled[image] != feats[image]).any(dim=0)  # (H, W)
        region = attn[image, label] > 0
        share = f"{int((changed & region).sum())} of {int(region.sum())}"
        if lam[image, label] == 1:
            print(f"{image:>5}  {LABELS[label]:<6} {'-':>7}  {'(not shared)':>19}  {share:>17}")
            continue
        other = before[partner[image], label]
        gap, left = ((value[image, label] - other).norm().item() for value in (before, after))
        print(f"{image:>5}  {LABELS[label]:<6} {int(partner[image]):>7}  {gap:>8.3f} → {left:>8.3f}  {share:>17}")
    outside = ((attn > 0) & (lam < 1)[:, :, None, None]).any(dim=1, keepdim=True).logical_not().expand_as(feats)
    equal = int((restyled[outside] == feats[outside]).sum())
    print(f"outside the regions of shared labels: {equal} of {int(outside.sum())} values bit-equal")


def train_once(backbone: torch.nn.Module, images: Tensor) -> None:
    """Do the same inside a network, where the regions are learned: one training step, then the plain backbone."""
    style = ldstyle.LabelDecoupledConfig(ldstyle.EFDMixConfig(), ldstyle.LLAMConfig(), gate_prob=1.0, warmup_epochs=0)
    keys = list(backbone.state_dict())
    net = ldstyle.attach(backbone, style, stages=(1, 2), num_labels=len(LABELS), image_size=(64, 96)).train()
    context = ldstyle.StyleContext(PRESENT, DOMAIN, index=None, flips=None, epoch=1)
    output = net(images, context)
    loss = LF.objective(output, PRESENT, diversity_weight=0.1)
    loss.backward()
    print(f"one step of LD-EFDMix after {', '.join(point.name for point in net.points)}: loss {loss.item():.3f}")
    same = torch.equal(net.eval()(images), net.backbone(images)) and list(net.backbone.state_dict()) == keys
    print(f"the network outside training is the plain backbone: {same}")


def main() -> None:
    """Restyle one batch by the functions, and one inside a network."""
    generator = np.random.default_rng(0)
    torch.manual_seed(0)  # the weights of the backbone
    backbone = timm.create_model("resnet18", num_classes=len(LABELS)).eval()
    images = draw_images(generator)
    with torch.no_grad():
        feats = backbone.layer1(
            backbone.maxpool(backbone.act1(backbone.bn1(backbone.conv1(images))))
        )  # (B, 64, 16, 24)
    show_batch(feats, draw_attention((feats.shape[2], feats.shape[3])))
    train_once(backbone, images)


if __name__ == "__main__":
    main()
