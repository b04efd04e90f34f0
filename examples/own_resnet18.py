"""Add label-decoupled augmentation to a torchvision ResNet-18 and train it in a custom loop.

Images and labels are generated tensors, as any data loader returns them. The augmentation also needs the domain of each
image. Runs in a few seconds and downloads nothing.
"""

from __future__ import annotations

import torch
import torchvision
from torch import Tensor

import ldstyle
from ldstyle import functional as LF
from ldstyle.metrics import mean_average_precision

LABELS = ("field", "lake")
COLOURS = torch.tensor([[0.2, 0.9, 0.1], [0.1, 0.2, 1.0]])
LIGHT = torch.tensor([[1.0, 1.0, 1.0], [1.3, 1.1, 0.8], [0.8, 0.9, 1.1]])  # of each domain
SIZE, EPOCHS, STEPS, BATCH = 64, 3, 5, 8


def draw_batch(count: int, domains: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Generate images (B, 3, 64, 64), label presence (B, 2) and domains (B,)."""
    present = torch.rand(count, len(LABELS), generator=generator) < 0.5
    domain = torch.tensor(domains)[torch.randint(len(domains), (count,), generator=generator)]
    images = 0.4 + 0.1 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
    corners = torch.randint(SIZE // 2, (count, len(LABELS), 2), generator=generator)
    for number, label in present.nonzero().tolist():
        top, left = corners[number, label].tolist()
        images[number, :, top : top + SIZE // 2, left : left + SIZE // 2] = COLOURS[label][:, None, None]
    return images * LIGHT[domain][:, :, None, None], present, domain


def train(net: ldstyle.StyledNet, generator: torch.Generator) -> None:
    """Train on domains 0 and 1; only the call of the network and the loss differ from a plain loop."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(1, EPOCHS + 1):
        net.train()
        losses = []
        for _ in range(STEPS):
            images, present, domain = draw_batch(BATCH, (0, 1), generator)
            context = ldstyle.StyleContext(present, domain, index=None, flips=None, epoch=epoch)
            loss = LF.objective(net(images, context), present, diversity_weight=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / STEPS:.3f}")


def main() -> None:
    """Attach, train, and evaluate the plain network."""
    torch.manual_seed(0)  # the weights
    generator = torch.Generator().manual_seed(0)  # the images
    backbone = torchvision.models.resnet18(num_classes=len(LABELS))
    for point in ldstyle.insertion_points(backbone, image_size=(SIZE, SIZE)):
        print(point)

    style = ldstyle.LabelDecoupledConfig(ldstyle.EFDMixConfig(), ldstyle.LLAMConfig(), warmup_epochs=1)
    stages = ("layer1", "layer2")
    net = ldstyle.attach(backbone, style, stages=stages, num_labels=len(LABELS), image_size=(SIZE, SIZE))
    train(net, generator)

    plain = torchvision.models.resnet18(num_classes=len(LABELS))  # without ldstyle
    plain.load_state_dict(net.backbone.state_dict())
    images, present, _ = draw_batch(64, (2,), generator)
    with torch.no_grad():
        scores = plain.eval()(images).sigmoid()
    print(f"mAP in a domain never seen: {100 * mean_average_precision(scores, present).item():.1f}")


if __name__ == "__main__":
    main()
