"""Train under torch.compile: the backbone is compiled in parts, the style modules between them run eagerly."""

from __future__ import annotations

import sys

import timm
import torch

import ldstyle


def main(backend: str) -> None:
    """Compile a styled network, make four steps, and predict with the same compiled network."""
    torch.manual_seed(0)
    backbone = timm.create_model("test_resnet", num_classes=6)
    net = ldstyle.attach(backbone, "ld-efdmix", num_labels=6, image_size=(64, 64))
    # Stages of a network often share their code but not their shapes: `dynamic=False` compiles each for itself.
    compiled = torch.compile(net, backend=backend, dynamic=False)  # shares its weights with `net`
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net.train()
    for step in range(1, 5):
        images, labels = torch.randn(8, 3, 64, 64), (torch.rand(8, 6) < 0.5).float()
        output = compiled(images, labels=labels, domain=torch.arange(8) % 2, epoch=11)
        loss = net.loss(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
    net.eval()
    with torch.no_grad():
        print("as the plain backbone:", torch.allclose(compiled(images), net.backbone(images), atol=1e-4))


if __name__ == "__main__":
    main(*sys.argv[1:] or ["inductor"])
