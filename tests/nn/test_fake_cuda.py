"""The GPU path without a GPU: no mixture of devices, and no waiting for the device but where a result is read."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from tests.deploy.models import SIZE, pixels, write_model
from tests.fake_cuda import BACKWARD, FORWARD, fake_cuda, moved
from tests.nn.nets import (
    GLOBAL,
    IMAGE_SIZE,
    LABELS,
    STAGES,
    Toy,
    fill_maps,
    label_decoupled,
    make_context,
    make_images,
    seeded,
    styled,
)
from torch import nn

from ldstyle.config import (
    Attention,
    GlobalConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LLAMConfig,
    MasksConfig,
    MixStyleConfig,
    ProbeConfig,
    UniformConfig,
)
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.deploy.classifier import load
from ldstyle.deploy.explain import Explainer
from ldstyle.evaluation.attention.maps import learned_maps
from ldstyle.evaluation.localization import locate
from ldstyle.evaluation.predict import predict
from ldstyle.evaluation.probe.features import FrozenBackbone
from ldstyle.nn import analyse_head
from ldstyle.nn.backbones.activation_maps import averaged_maps
from ldstyle.runs.backbone import Preprocessing
from ldstyle.runs.config import BackboneConfig
from ldstyle.runs.normalized_net import NormalizedNet
from ldstyle.runs.processes import OnHost
from ldstyle.training.step import StyledLoss


def attended(attention, **settings):
    return replace(label_decoupled("efdmix", "llam"), attention=attention, **settings)


# A new operator or attention source gets a line here; ``None`` is ERM.
METHODS = {
    "erm": None,
    **GLOBAL,
    "crossdomain": GlobalConfig(MixStyleConfig(), gate_prob=1.0, pairing="crossdomain"),
    "ld-mixstyle": label_decoupled("mixstyle", "llam", bank_size=4),
    "ld-efdmix": label_decoupled("efdmix", "llam"),
    "ld-csu": label_decoupled("csu", "llam"),
    "ld-mixstyle-gc": label_decoupled("mixstyle", "gradcam", bank_size=4),
    "ld-efdmix-gc": label_decoupled("efdmix", "gradcam"),
    "ld-csu-gc": label_decoupled("csu", "gradcam"),
    "ld-mixstyle-uniform": label_decoupled("mixstyle", "uniform"),
    "ld-efdmix-uniform-step": attended(UniformConfig("step")),
    "ld-efdmix-cam": attended(LLAMConfig(grounding="cam", grounding_threshold=0.2)),
    "ld-efdmix-lse": attended(LLAMConfig(grounding="lse")),
    "ld-efdmix-probe": attended(ProbeConfig()),
    "ld-efdmix-masks": attended(MasksConfig(fallback="probe")),
    "ld-efdmix-masks-alone": attended(MasksConfig()),
    "ld-efdmix-gc-thresholded": attended(GradCamConfig(threshold=0.3)),
}
AUGMENTATION = Augmentation(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
BATCH = 6


def network(method):
    style = METHODS[method]
    if style is None:
        return seeded(Toy).train()
    net = styled(style)
    fill_maps(net)
    return net


def step(loss, number, device, optimizer=None):
    """Augment, run and, with an optimizer, learn from one batch; labels and draws stay on the host."""
    generator = np.random.default_rng(number)
    images = torch.from_numpy(generator.integers(0, 256, (BATCH, 3, *IMAGE_SIZE), dtype=np.uint8))
    augmented, flips = AUGMENTATION(images.to(device, non_blocking=True), generator)
    context = make_context(BATCH, seed=number, flips=flips)
    value, scalars = loss(augmented, OnHost(replace(context, known=torch.ones(BATCH, LABELS, dtype=torch.bool))))
    if optimizer is not None:
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return value, scalars


# The type of the device matters little, so a method per attention source is enough for the one without a backward pass.
SOURCES = ("ld-efdmix", "ld-efdmix-gc", "ld-efdmix-probe", "ld-efdmix-masks", "ld-mixstyle-uniform")
STEPS = [
    *((method, BACKWARD) for method in METHODS),
    *((method, FORWARD) for method in ("erm", "mixstyle", *SOURCES)),
]


@pytest.mark.parametrize("methods", [METHODS, SOURCES], ids=["all", "forward"])
def test_every_attention_source_is_among_the_methods(methods):
    styles = [METHODS[method] for method in methods]
    assert {type(style.attention) for style in styles if isinstance(style, LabelDecoupledConfig)} == {
        *get_args(Attention)
    }


@pytest.mark.parametrize(("method", "device"), STEPS)
def test_a_training_step_never_waits_for_the_device(method, device):
    net = network(method)
    with fake_cuda() as cuda:
        loss = StyledLoss(moved(net, device))
        optimizer = torch.optim.AdamW(loss.parameters()) if device == BACKWARD else None
        step(loss, 0, device, optimizer)
        cuda.waits.clear()  # constants go to the device in the first step
        value, scalars = step(loss, 1, device, optimizer)
    assert value.device == torch.device(device)
    assert cuda.waits == []
    assert "loss" in scalars
    if optimizer is not None:
        assert all(parameter.grad.device == parameter.device for parameter in net.parameters())


class Opaque(Toy):
    """A network whose maps need a backward pass through its head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, LABELS))


@pytest.mark.parametrize(
    ("build", "device", "attention", "size"),
    [
        (Toy, FORWARD, GradCamConfig(), IMAGE_SIZE),
        (Opaque, BACKWARD, GradCamConfig(), IMAGE_SIZE),
        (Toy, FORWARD, GradCamConfig(average_flips=True, scales=(0.5, 1.0, 1.5), map_size=32), (32, 32)),
        (Opaque, BACKWARD, GradCamConfig(average_flips=True), IMAGE_SIZE),
    ],
    ids=["linear", "opaque", "averaged", "opaque-averaged"],
)
def test_a_refresh_waits_once_per_batch_for_its_maps_and_what_was_predicted(build, device, attention, size):
    net = styled(attended(attention), build=build)
    contexts = [make_context(BATCH, seed=number) for number in range(2)]
    with fake_cuda() as cuda:
        moved(net, device)
        batches = [(make_images(BATCH, size=size).to(device, non_blocking=True), c.present, c.index) for c in contexts]
        net.refresh(iter(batches))
    assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits] == ["host"] * 4
    assert net.cams.ready


@pytest.mark.parametrize("method", ["ld-efdmix-probe", "ld-efdmix-masks", "ld-efdmix-masks-alone"])
def test_maps_that_are_there_before_training_stay_on_the_host(method):
    net = styled(METHODS[method])
    with fake_cuda() as cuda:
        moved(net, FORWARD)
        fill_maps(net)
    assert cuda.waits == []
    assert net.cams.ready
    assert net.cams.lookup(torch.arange(2), None, torch.ones(2, LABELS, dtype=torch.bool)).maps.device.type == "cpu"


def test_an_online_refresh_waits_for_its_maps_and_what_was_predicted():
    net = styled(attended(GradCamConfig("online"), gate_prob=0.0))
    with fake_cuda() as cuda:
        loss = StyledLoss(moved(net, FORWARD))
        step(loss, 0, FORWARD)
        cuda.waits.clear()  # constants go to the device in the first step
        step(loss, 1, FORWARD)
    assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits] == ["host"] * 2
    assert net.cams.ready


def test_features_of_a_frozen_backbone_wait_once_per_batch():
    config = BackboneConfig("test_resnet", "none")
    backbone = FrozenBackbone(config, num_labels=LABELS, size=32, device=torch.device("cpu"))
    with fake_cuda() as cuda:
        moved(backbone._network, FORWARD)
        backbone._device = torch.device(FORWARD)
        maps = backbone(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    assert (maps.device.type, maps.dtype) == ("cpu", torch.float16)
    assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits] == ["host"]


def test_maps_to_be_judged_are_made_without_waiting():
    net = styled(attended(LLAMConfig(grounding="lse")))
    head = analyse_head(net.backbone, image_size=IMAGE_SIZE)
    present = torch.ones(2, LABELS, dtype=torch.bool)
    with fake_cuda() as cuda:
        moved(net, FORWARD)
        images = make_images(2).to(FORWARD, non_blocking=True)
        found = learned_maps(net, images, present.to(FORWARD, non_blocking=True))
        maps, logits = averaged_maps(net.backbone, head, images, flips=True, scales=(1.0, 1.5))
    assert {*found} == {*STAGES}
    assert {value.device for value in (*found.values(), maps, logits)} == {torch.device(FORWARD)}
    assert cuda.waits == []


def test_evaluation_waits_once_at_the_end():
    network = NormalizedNet(seeded(Toy), Preprocessing(AUGMENTATION.mean, AUGMENTATION.std), fused=True)
    images = [torch.zeros(2, 3, *IMAGE_SIZE, dtype=torch.uint8)] * 3
    with fake_cuda() as cuda:
        moved(network, FORWARD)
        logits = predict(network, images).logits
    assert (logits.device.type, logits.shape) == ("cpu", (6, LABELS))
    assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits] == ["host"]


def test_deployment_waits_for_results_alone(tmp_path):
    write_model(tmp_path)
    classifier = load(tmp_path)
    explain = Explainer(classifier)
    images = torch.from_numpy(np.stack([pixels(0), pixels(1), pixels(2)])).permute(0, 3, 1, 2)
    assert images.shape[2:] == (SIZE, SIZE)
    with fake_cuda() as cuda:
        moved(classifier, FORWARD)
        prediction = classifier.predict(images, batch_size=2)
        assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits] == ["host"]
        assert prediction.present.shape == (3, 3)
        cuda.waits.clear()
        assert explain(images).maps.device.type == "cpu"
        assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits].count("host") == 2


def test_the_fake_device_finds_mixed_devices_reads_and_waits():
    with fake_cuda() as cuda:
        there, here = torch.zeros(3, device=FORWARD), torch.ones(3)
        assert here.sum().item() == 3
        with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
            there + here
        for read in (torch.Tensor.item, bool, torch.nonzero):
            with pytest.raises(Exception, match=r"_local_scalar_dense|nonzero"):
                read(there[:1])
        assert cuda.waits == []
        _ = here.to(FORWARD, non_blocking=True)
        assert cuda.waits == []
        _ = here.to(FORWARD), there.cpu(), there[torch.tensor([0, 1])]
        assert len(cuda.waits) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("method", METHODS)
def test_on_a_gpu_a_step_gives_the_loss_of_the_cpu_and_never_waits(method):
    net = network(method)
    losses = [StyledLoss(copy.deepcopy(net)), StyledLoss(net.to("cuda"))]
    optimizers = [torch.optim.AdamW(loss.parameters()) for loss in losses]
    for loss, optimizer, device in zip(losses, optimizers, ("cpu", "cuda"), strict=True):
        step(loss, 0, device, optimizer)
    alone, _ = step(losses[0], 1, "cpu", optimizers[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        value, _ = step(losses[1], 1, "cuda", optimizers[1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # Sums over about 300 terms in TF32 (2^-11), through five layers and one step of the optimizer.
    torch.testing.assert_close(value.cpu(), alone, rtol=5 * 2**-11 * 300**0.5, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_maps_are_judged_as_on_the_cpu():
    generator = torch.Generator().manual_seed(3)
    attn, regions = torch.rand(2, LABELS, 5, 7, generator=generator), torch.rand(2, LABELS, 10, 14) > 0.6
    regions[0, 1] = False
    found, expected = locate(attn.cuda(), regions), locate(attn, regions)
    for name in ("pointing", "iou", "area", "mass", "coverage"):
        value = getattr(found, name)
        assert value.device.type == "cuda"
        torch.testing.assert_close(value.cpu(), getattr(expected, name), equal_nan=True)
