"""Train any network with label-decoupled augmentation in a plain PyTorch loop, cached attention included."""

from __future__ import annotations

import timm
import torch
from torch.utils.data import DataLoader, TensorDataset

import ldstyle
from ldstyle.data import Indexed


def main() -> None:
    """Train for three epochs on random images of two domains."""
    torch.manual_seed(0)
    images, domain = torch.randn(32, 3, 64, 64), torch.arange(32) % 2
    labels = (torch.rand(32, 6) < 0.5).float()
    labels[0, 0] = torch.nan  # unknown
    dataset = Indexed(TensorDataset(images, labels, domain))  # adds each sample's number

    backbone = timm.create_model("test_resnet", num_classes=6)
    net = ldstyle.attach(backbone, "ld-efdmix-gc", num_labels=6, num_samples=len(dataset), image_size=(64, 64))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(1, 4):
        net.train()
        for batch, target, origin, index in DataLoader(dataset, batch_size=8, shuffle=True):
            output = net(batch, labels=target, domain=origin, epoch=epoch, index=index)
            loss = net.loss(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if net.refresh_due(epoch):  # methods with cached attention; unaugmented images
            net.refresh((batch, target == 1, index) for batch, target, _, index in DataLoader(dataset, batch_size=8))
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
