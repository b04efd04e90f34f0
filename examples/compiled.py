"""Train under torch.compile: pairing and draws stay outside the graphs, the mathematics runs in its plain forms."""

from __future__ import annotations

import sys

import timm
import torch

import ldstyle


def main(backend: str = "inductor") -> None:
    """Train three steps and compare the compiled network with the plain one in eval mode."""
    torch.manual_seed(0)
    backbone = timm.create_model("test_resnet", num_classes=6)
    net = ldstyle.attach(backbone, "ld-mixstyle", num_labels=6, image_size=(64, 64)).train()
    compiled = torch.compile(net, backend=backend)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    images, labels = torch.randn(8, 3, 64, 64), (torch.rand(8, 6) < 0.5).float()
    for step in range(1, 4):
        output = compiled(images, labels=labels, domain=torch.arange(8) % 2, epoch=11)
        loss = net.loss(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
    net.eval()
    with torch.no_grad():
        same = torch.allclose(compiled(images), net.backbone(images), atol=1e-4)
    print(f"compiled and plain network agree: {same}")


if __name__ == "__main__":
    main(*sys.argv[1:])
