"""A label-decoupled style module: one style per label, inside that label's region."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ldstyle.config import (
    CSULiteConfig,
    EFDMixConfig,
    LabelDecoupledConfig,
    LLAMConfig,
    MixStyleConfig,
    StoredAttention,
    UniformConfig,
    background_weight,
)
from ldstyle.functional import (
    attention_diversity,
    blend_pathways,
    effective_lambda,
    effective_locations,
    label_moments,
    mix_moments,
    mix_topk_values,
    perturb_moments,
    pooled_logits,
    recompose,
    relative_change,
    warmup_weight,
)
from ldstyle.functional.global_styles import global_moments
from ldstyle.nn.banks import CachedMaps, StyleBank
from ldstyle.nn.draws import Mixing, Perturbation, StyleDraws
from ldstyle.nn.global_style import apply_global
from ldstyle.nn.llam import LLAM
from ldstyle.types import Moments, PairedContext


class Styled(NamedTuple):
    """Result of a style module.

    Attributes:
        feats: The map.
        attn: The attention in use.
        diversity: Its diversity (Eq. 5).
        clamped: Number of clamped gains.
        logits: Logits of learned attention, (B, L, H, W), where a loss grounds it by class activation maps.
        evidence: Label logits pooled from them, (B, L), where a loss grounds it by these.
        locations: Median over present labels of the effective locations, as a fraction of the map; NaN without any.
        change: Relative feature change of each sample, (B,), where the module fired.
        restyled: Labels that the per-label path gave another style, (B, L) bool on the host; ``None`` where it did not
            run.
    """

    feats: Tensor
    attn: Tensor | None = None
    diversity: Tensor | None = None
    clamped: Tensor | None = None
    logits: Tensor | None = None
    evidence: Tensor | None = None
    restyled: Tensor | None = None
    locations: Tensor | None = None
    change: Tensor | None = None


class Region(NamedTuple):
    """Where each label is in a batch.

    Attributes:
        attn: Unit-mass attention, (B, L, H, W); all-zero where a label is absent or has no map.
        usable: True where a present label has a map, (B, L) bool on the host. ``None`` means that all have.
        logits: Attention logits, (B, L, H, W), where a loss grounds learned attention.
    """

    attn: Tensor
    usable: Tensor | None
    logits: Tensor | None = None


class LabelDecoupledStyle(nn.Module):
    """Restyle each label's region towards a cross-domain sample that carries the label; the identity outside training.

    Args:
        config: The method's settings.
        channels: Channels C of the feature map.
        num_labels: Number of labels L.
    """

    def __init__(self, config: LabelDecoupledConfig, channels: int, num_labels: int) -> None:
        super().__init__()
        self.config = config
        self.llam: LLAM | None = None
        if isinstance(config.attention, LLAMConfig):
            self.llam = LLAM(
                channels,
                num_labels,
                temperature=config.attention.temperature,
                input_norm=config.attention.input_norm,
                input_gradient=config.attention.input_gradient,
            )
        self.bank = StyleBank(num_labels, channels, size=config.bank_size) if config.bank_size else None

    def forward(
        self, feats: Tensor, batch: PairedContext, draws: StyleDraws | None, cached: CachedMaps | None = None
    ) -> Styled:
        """Restyle a batch.

        Args:
            feats: Feature map, (B, C, H, W).
            batch: Labels, domains and partners.
            draws: The module's draws; ``None`` when its gate is shut. Learned attention is computed all the same,
                since the diversity loss runs at every step.
            cached: Cached maps, or ``None`` before there are any.

        Returns:
            The restyled map and what the loss and the log need. In eval mode ``feats`` itself.
        """
        if not self.training:
            return Styled(feats)
        if self.llam is None and draws is None:
            return Styled(feats)
        region = self._attend(feats, batch, cached)
        styled = Styled(feats) if region is None else self._observe(feats, region, batch)
        if draws is None:
            return styled
        weight = self._local_weight(batch.epoch, region)
        clamped = restyled = None
        if weight > 0 and region is not None:
            restyled = self._restyled(region, batch)
            mixed, clamped = self.restyle(feats, region, batch, draws)
            mixed = self._blend(mixed, feats, weight, region, batch, draws)
        else:
            mixed = apply_global(self.config.operator, feats, batch.global_partner, draws.global_)
        return styled._replace(feats=mixed, clamped=clamped, restyled=restyled, change=relative_change(feats, mixed))

    def restyle(
        self, feats: Tensor, region: Region, batch: PairedContext, draws: StyleDraws
    ) -> tuple[Tensor, Tensor | None]:
        """Restyle each label's region: the per-label path, which a subclass with an operator of its own overrides.

        Gate, attention, partners, warm-up and diversity loss are not its concern.

        Args:
            feats: Feature map, (B, C, H, W).
            region: Where each label is.
            batch: Labels, domains and partners.
            draws: The module's draws.

        Returns:
            Restyled map, (B, C, H, W), and the number of clamped gains, or ``None`` where nothing is clamped.
        """
        background = background_weight(self.config.background, feats.shape[2] * feats.shape[3])
        match self.config.operator, draws.local:
            case EFDMixConfig(top_ratio=top_ratio), Mixing(lam):
                lam = effective_lambda(lam, batch.present, batch.partner)
                # The top-K of a constant map would be a raster strip.
                constant = isinstance(self.config.attention, UniformConfig)
                whole = batch.present if constant else _whole(region, batch, lam)
                mixed = mix_topk_values(
                    feats,
                    self._blending(_with_uniform(region, whole)),
                    batch.partner,
                    lam,
                    top_ratio=top_ratio,
                    background=background,
                    whole_map=whole,
                    ranking=region.attn,
                )
                return mixed, None
            case MixStyleConfig(), Mixing(lam):
                attn, old, new = self._mixed_moments(feats, region, batch, lam, draws.choice)
            case CSULiteConfig(strength=strength), Perturbation(noise, common):
                attn = _with_uniform(region, None if region.usable is None else batch.present & ~region.usable)
                old = label_moments(feats.detach(), attn)
                noise, common = (value.to(feats.device, non_blocking=True) for value in (noise, common))
                new = perturb_moments(old, noise, common, strength=strength)
            case operator, draw:
                raise TypeError(f"{type(draw).__name__} draws do not belong to {type(operator).__name__}.")
        ratio = new.std.detach() / old.std.detach()
        beyond = (ratio > self.config.max_gain) | (ratio * self.config.max_gain < 1)
        clamped = (beyond & batch.present.to(feats.device, non_blocking=True)[:, :, None]).sum()
        attn = self._blending(attn)
        return recompose(feats, attn, old, new, background=background, max_gain=self.config.max_gain), clamped

    def extra_repr(self) -> str:
        """Show the settings."""
        shown = ("operator", "attention", "gate_prob", "warmup_epochs", "background")
        return ", ".join(f"{name}={getattr(self.config, name)}" for name in shown)

    def _attend(self, feats: Tensor, batch: PairedContext, cached: CachedMaps | None) -> Region | None:
        present = batch.present.to(feats.device, non_blocking=True)
        if self.llam is not None:
            logits = self.llam.logits(feats)
            attention = self.config.attention
            grounded = isinstance(attention, LLAMConfig) and attention.grounding != "none"
            return Region(self.llam.attend(logits, present), None, logits if grounded else None)
        if isinstance(self.config.attention, StoredAttention):
            return None if cached is None else Region(cached.at(feats), cached.usable)
        height, width = feats.shape[2:]
        precision = torch.promote_types(feats.dtype, torch.float32)
        uniform = torch.full((1, 1, height, width), 1 / (height * width), device=feats.device, dtype=precision)
        return Region(uniform * present[:, :, None, None], None)

    def _observe(self, feats: Tensor, region: Region, batch: PairedContext) -> Styled:
        """Return the losses and the figures of the attention in use, with the features unchanged."""
        attention, present = self.config.attention, batch.present.to(feats.device, non_blocking=True)
        attn = region.attn.detach()
        if isinstance(attention, UniformConfig):
            return Styled(feats, attn)
        locations = effective_locations(attn) / (attn.shape[2] * attn.shape[3])
        styled = Styled(feats, attn, locations=_positive_median(locations))
        if not isinstance(attention, LLAMConfig):
            return styled
        styled = styled._replace(diversity=attention_diversity(region.attn, present))
        if region.logits is None:
            return styled
        if attention.grounding == "lse":
            return styled._replace(evidence=pooled_logits(region.logits, temperature=attention.temperature))
        return styled._replace(logits=region.logits)

    def _blending(self, attn: Tensor) -> Tensor:
        """Return the maps for Eq. 3, detached where they are not to learn from it."""
        attention = self.config.attention
        return attn.detach() if isinstance(attention, LLAMConfig) and not attention.blend_gradient else attn

    def _local_weight(self, epoch: int, region: Region | None) -> float:
        match self.config.attention:
            case attention if isinstance(attention, StoredAttention):
                return 0.0 if region is None else 1.0
            case UniformConfig(switch="step"):
                return float(epoch > self.config.warmup_epochs)
            case _:
                return warmup_weight(epoch, self.config.warmup_epochs)

    def _restyled(self, region: Region, batch: PairedContext) -> Tensor:
        """Mark the labels that get a partner's or the bank's style or a perturbed one, (B, L) bool on the host."""
        own_map = batch.present if region.usable is None else batch.present & region.usable
        if isinstance(self.config.operator, CSULiteConfig):
            restyled = batch.present
        else:
            restyled = effective_lambda(torch.zeros(batch.present.shape), batch.present, batch.partner) < 1
        if self.bank is not None:
            restyled = restyled | self.bank.offers(own_map, batch.domain, original=batch.original)
        # A sample without any usable map takes the global path.
        return restyled & own_map.any(dim=1, keepdim=True)

    def _blend(
        self, mixed: Tensor, feats: Tensor, weight: float, region: Region, batch: PairedContext, draws: StyleDraws
    ) -> Tensor:
        """Bring in the global path: by the warm-up's weight, and alone for samples without any usable map."""
        if weight < 1:
            global_ = apply_global(self.config.operator, feats, batch.global_partner, draws.global_)
            return blend_pathways(mixed, global_, weight)
        if isinstance(self.config.attention, StoredAttention) and region.usable is not None:
            lost = (batch.present.any(dim=1) & ~region.usable.any(dim=1)).nonzero()[:, 0]
            if len(lost):
                global_ = self._global_rows(feats, lost, batch, draws)
                return mixed.index_copy(0, lost.to(feats.device, non_blocking=True), global_.to(mixed.dtype))
        return mixed

    def _global_rows(self, feats: Tensor, rows: Tensor, batch: PairedContext, draws: StyleDraws) -> Tensor:
        """Apply the global operator to some samples only: they and their partners make a smaller batch."""
        both = torch.cat([rows, batch.global_partner[rows]])
        partner = torch.arange(len(both))
        partner[: len(rows)] += len(rows)
        draw = type(draws.global_)(*(value[both] for value in draws.global_))
        subset = feats[both.to(feats.device, non_blocking=True)]
        return apply_global(self.config.operator, subset, partner, draw)[: len(rows)]

    def _mixed_moments(
        self, feats: Tensor, region: Region, batch: PairedContext, lam: Tensor, choice: Tensor | None
    ) -> tuple[Tensor, Moments, Moments]:
        """Return the maps in use, the moments under them, and those moments mixed with a partner's or the bank's."""
        device = feats.device
        detached = feats.detach()
        effective = effective_lambda(lam, batch.present, batch.partner)
        whole = _whole(region, batch, effective)
        banked, found = None, None
        if self.bank is not None and choice is not None:
            own_map = batch.present if region.usable is None else batch.present & region.usable
            banked, found = self.bank.draw(own_map, batch.domain, choice, original=batch.original)
            effective = torch.where(found, lam, effective)
            whole = None if whole is None or not (whole & ~found).any() else whole & ~found
        attn = _with_uniform(region, whole)
        old = label_moments(detached, attn)
        partner = batch.partner.to(device, non_blocking=True)
        theirs = old if whole is None else label_moments(detached, region.attn.detach())
        other = Moments(*(value.detach()[partner] for value in theirs))
        if whole is not None:
            uniform = global_moments(detached)  # (B, 1, C)
            chosen = whole.to(device, non_blocking=True)[:, :, None]
            other = Moments(*(torch.where(chosen, g[partner], o) for g, o in zip(uniform, other, strict=True)))
        if banked is not None and found is not None and found.any():
            chosen = found.to(device, non_blocking=True)[:, :, None]
            # A bank restored from a checkpoint is on the host until its first push.
            banked = Moments(*(value.to(device, non_blocking=True) for value in banked))
            other = Moments(*(torch.where(chosen, b, o) for b, o in zip(banked, other, strict=True)))
        if self.bank is not None and batch.clean:
            keep = batch.present if region.usable is None else batch.present & region.usable
            clean = Moments(theirs.mean.detach(), theirs.std.detach())
            self.bank.push(clean, keep, batch.domain, original=batch.original)
        return attn, old, mix_moments(old, other, effective.to(device, non_blocking=True))


def _positive_median(values: Tensor) -> Tensor:
    """Return the median of the positive values, the lower of two; NaN if there is none.

    Older versions of torch count NaN on the host in ``nanmedian``, which waits for a GPU.
    """
    ordered = torch.where(values > 0, values, torch.nan).flatten().sort().values  # NaN last
    if not len(ordered):
        return values.new_full((), torch.nan)
    middle = ((values > 0).sum() - 1).clamp(min=0) // 2
    return ordered.gather(0, middle[None])[0]


def _whole(region: Region, batch: PairedContext, lam: Tensor) -> Tensor | None:
    """Mark labels that match whole maps because either side of the pair has no map of its own, (B, L) bool.

    ``None`` if there is none, so that statistics of whole maps are not computed unnecessarily.
    """
    if region.usable is None:
        return None
    shared = lam < 1
    whole = batch.present & ~(region.usable & (region.usable[batch.partner] | ~shared))
    return whole if whole.any() else None


def _with_uniform(region: Region, whole: Tensor | None) -> Tensor:
    """Put the uniform map where a label has none of its own to use."""
    if whole is None or not whole.any():
        return region.attn
    height, width = region.attn.shape[2:]
    chosen = whole.to(region.attn.device, non_blocking=True)[:, :, None, None]
    return torch.where(chosen, 1 / (height * width), region.attn)
