"""Networks whose attention is cached: when maps are rebuilt, used, and updated on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import timm
import torch
from tests.nn.nets import (
    LABELS,
    SAMPLES,
    STYLES,
    Toy,
    fill_maps,
    label_decoupled,
    make_context,
    make_images,
    styled,
)
from tests.tolerance import bound
from torch import nn

from ldstyle.config import GradCamConfig
from ldstyle.functional import flip_maps
from ldstyle.nn import attach


class TestCachedMaps:
    @pytest.mark.parametrize(
        ("refresh", "warmup", "every", "due"),
        [
            ("sweep", 5, 9, [5, 14, 23]),
            ("sweep", 0, 4, [0, 4, 8, 12, 16, 20, 24]),
            ("sweep", 3, 1, list(range(3, 25))),
            ("never", 5, 9, [5]),
            ("never", 0, 1, [0]),
            ("online", 5, 9, []),
        ],
    )
    def test_rebuilding_is_due_after_the_warm_up_and_then_at_intervals(self, refresh, warmup, every, due):
        style = replace(label_decoupled("csu", "gradcam", gate_prob=0.5), attention=GradCamConfig(refresh, every))
        net = styled(replace(style, warmup_epochs=warmup))
        assert [epoch for epoch in range(25) if net.refresh_due(epoch)] == due

    def test_rebuilding_is_never_due_without_cached_maps(self):
        nets = [styled(label_decoupled("efdmix", "llam")), styled(STYLES["dsu"])]
        assert not any(net.refresh_due(epoch) for net in nets for epoch in range(30))

    def test_maps_are_used_from_the_first_epoch_after_the_warm_up_in_which_there_are_any(self):
        net = styled(label_decoupled("mixstyle", "gradcam", warmup_epochs=2), stages=("stage2",))
        images = make_images()
        assert not net(images, make_context(epoch=3)).attention
        fill_maps(net)
        assert not net(images, make_context(epoch=2)).attention
        assert net(images, make_context(epoch=3)).attention

    def test_the_attention_in_use_is_the_stored_map_flipped_like_its_image(self):
        net = styled(label_decoupled("mixstyle", "gradcam"), stages=("stage3",))
        fill_maps(net, missing=0.0)
        context = make_context(present=torch.ones(6, LABELS, dtype=torch.bool))
        stored = net.cams.lookup(context.index, None, context.present).maps.float()
        wanted = flip_maps(stored, context.flips)
        attn = net(make_images(), context).attention["stage3"]
        rounding = bound(2 * wanted[0, 0].numel() + 8, dtype=torch.float32)
        torch.testing.assert_close(attn, wanted / wanted.sum(dim=(2, 3), keepdim=True), rtol=0, atol=rounding)
        assert context.flips.any(dim=0).all()

    def test_a_sweep_fills_the_bank_from_the_network_as_it_is(self):
        net = styled(label_decoupled("mixstyle", "gradcam"))
        present = torch.ones(SAMPLES, LABELS, dtype=torch.bool)
        images = make_images(SAMPLES)
        net.backbone.head.weight.data.abs_()
        net.backbone.head.bias.data -= net.backbone(images).detach().sort(dim=0).values[19:21].mean(dim=0)
        net.refresh((images[i : i + 7], present[i : i + 7], torch.arange(SAMPLES)[i : i + 7]) for i in range(0, 40, 7))
        assert net.training
        found = net.backbone(images).sigmoid() >= 0.5
        assert 0 < found.sum() < found.numel()
        assert net.cams.coverage.tolist() == found.sum(dim=0).tolist()

    def test_a_size_that_the_backbone_refuses_is_named_with_the_settings_that_chose_it(self):
        vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=24, num_classes=LABELS)
        style, given = label_decoupled("mixstyle", "gradcam"), {"num_labels": LABELS, "num_samples": 1}
        net = attach(vit, style, stages=("blocks.0", "blocks.1"), **given)
        present, index = torch.ones(1, LABELS, dtype=torch.bool), torch.arange(1)
        net.refresh([(torch.randn(1, 3, 32, 32), present, index)])
        with pytest.raises(ValueError, match=r"64 × 48 px .* Set attention\.map_scale to 1"):
            net.refresh([(torch.randn(1, 3, 64, 48), present, index)])
        scaled = replace(style, attention=GradCamConfig(scales=(1.0, 2.0)))
        with pytest.raises(ValueError, match=r"64 × 64 px .* scales to \[1\]"):
            attach(vit, scaled, stages=("blocks.0", "blocks.1"), **given)

    def test_only_cached_attention_can_be_rebuilt(self):
        with pytest.raises(ValueError, match="Only Grad-CAM attention has maps to rebuild"):
            styled(label_decoupled("efdmix", "llam")).refresh([])


class TestOnlineRefresh:
    style = STYLES["online"]

    def entries(self, net):
        everything = torch.ones(SAMPLES, LABELS, dtype=torch.bool)
        return net.cams.lookup(torch.arange(SAMPLES), None, everything)

    @pytest.mark.parametrize("flipped", [False, True])
    def test_a_quiet_batch_stores_what_a_sweep_would_without_the_flips(self, flipped):
        net = styled(replace(self.style, gate_prob=0.0))
        swept = styled(label_decoupled("efdmix", "gradcam"))
        images, context = make_images(), make_context(epoch=1)
        context = context if flipped else replace(context, flips=None)
        net(images, context)
        swept.refresh([(images, context.present, context.index)])
        ours, wanted = self.entries(net), self.entries(swept)
        assert ours.usable.any()
        assert torch.equal(ours.usable, wanted.usable)
        assert not ours.usable[[i for i in range(SAMPLES) if i not in context.index]].any()
        maps = flip_maps(wanted.maps[context.index], context.flips) if flipped else wanted.maps[context.index]
        assert torch.equal(ours.maps[context.index], maps)

    def test_a_batch_in_which_a_module_fired_stores_nothing(self):
        net = styled(replace(self.style, gate_prob=0.5))
        quiet = 0
        for number in range(30):
            before = self.entries(net)
            context = make_context(seed=number, epoch=1)
            fired = net(make_images(seed=number), context).diagnostics["fired"]
            after = self.entries(net)
            changed = not torch.equal(before.maps, after.maps) if before.maps.shape == after.maps.shape else True
            assert not (changed and fired)
            quiet += changed
        assert quiet > 2

    def test_the_training_step_is_the_same_as_without(self):
        online, swept = styled(replace(self.style, gate_prob=0.0)), styled(label_decoupled("efdmix", "gradcam"))
        images, context = make_images(), make_context(epoch=1)
        assert torch.equal(online(images, context).logits, swept.backbone(images))

    def test_dropout_in_the_head_does_not_reach_the_correctness_gate(self):
        class Dropping(Toy):
            def forward(self, images):
                pooled = self.stage3(self.stage2(self.stage1(images))).mean(dim=(2, 3))
                return self.head(nn.functional.dropout(pooled, 0.9, self.training))

        net = styled(replace(self.style, gate_prob=0.0), build=Dropping)
        context = make_context(epoch=1)
        net(make_images(), context)
        net.backbone.eval()
        swept = styled(label_decoupled("efdmix", "gradcam"))
        swept.refresh([(make_images(), context.present, context.index)])
        assert torch.equal(self.entries(net).usable, self.entries(swept).usable)

    def test_a_head_that_needs_a_backward_pass_is_refused(self):
        def opaque():
            net = Toy()
            net.head = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, LABELS))
            return net

        with pytest.raises(
            ValueError, match=r"'online' needs a backbone with average pooling .*; Toy has another. Use"
        ):
            styled(self.style, build=opaque)
