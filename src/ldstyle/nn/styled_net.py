"""A backbone with style modules at its insertion points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ldstyle.config import (
    GlobalConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LLAMConfig,
    StyleConfig,
)
from ldstyle.functional import (
    attention_cross_entropy,
    match_partners,
    objective,
    relative_change,
    resize_maps,
    threshold_maps,
    unit_mass,
)
from ldstyle.nn.advice import Advice
from ldstyle.nn.backbones.activation_maps import linear_logits, linear_maps, predicted, refresh_bank
from ldstyle.nn.backbones.head import Head, LinearHead
from ldstyle.nn.backbones.insertion import InsertionPoint
from ldstyle.nn.backbones.layout import capture, logits_of, visiting
from ldstyle.nn.banks import CachedMaps, GradCamBank, StyleBank
from ldstyle.nn.compilation import eager, eager_frame
from ldstyle.nn.draws import Rows, StyleDraws, draw_style, random_partners
from ldstyle.nn.global_style import GlobalStyle
from ldstyle.nn.label_decoupled import LabelDecoupledStyle, Styled
from ldstyle.seeding import Streams
from ldstyle.types import Gather, PairedContext, StyleContext, StyledOutput, read_labels


class StyledNet(nn.Module):
    """A backbone and its style modules.

    ``net(images)`` is the plain backbone. ``net(images, labels=labels, domain=domain, epoch=epoch)`` augments while
    training and returns the logits with what ``net.loss(output, labels)`` needs. Style modules are hooked in for
    the length of one such call only, so ``net.backbone`` can be saved, exported and used without this package.

    Under ``torch.compile`` the backbone is compiled in parts, with a graph break at each insertion point; the style
    modules run eagerly.

    Args:
        backbone: The network.
        style: The method's settings.
        points: Where the modules sit.
        num_labels: Number of labels L.
        seed: Seed of the network's own random streams.
        cams: Bank of cached maps, for cached attention.
        head: How the classifier reads the last map, for class activation maps.
    """

    def __init__(
        self,
        backbone: nn.Module,
        style: StyleConfig,
        points: Sequence[InsertionPoint],
        *,
        num_labels: int,
        seed: int = 0,
        cams: GradCamBank | None = None,
        head: Head | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.style, self.points, self.num_labels = style, tuple(points), num_labels
        self.streams = Streams(seed)
        self.rank, self.world = 0, 1
        self.styles = nn.ModuleList(_build(style, point, num_labels) for point in points)
        self.cams, self.head = cams, head
        self._advice = Advice(style)
        attention = style.attention if isinstance(style, LabelDecoupledConfig) else None
        self._online = isinstance(attention, GradCamConfig) and attention.refresh == "online"
        self._grounded = isinstance(attention, LLAMConfig) and attention.needs_class_maps
        if (self._online or self._grounded) and not isinstance(head, LinearHead):
            setting, way_out = ("refresh = 'online'", "'sweep'") if self._online else ("grounding = 'cam'", "'lse'")
            raise ValueError(
                f"attention.{setting} needs a backbone with average pooling and one linear layer as its head, whose "
                f"maps cost no backward pass; {type(backbone).__name__} has another. Use {way_out}."
            )

    @eager_frame
    def forward(
        self,
        images: Tensor,
        context: StyleContext | None = None,
        *,
        labels: Tensor | None = None,
        domain: Tensor | None = None,
        epoch: int | None = None,
        index: Tensor | None = None,
        flips: Tensor | None = None,
    ) -> Any:
        """Run the network.

        Args:
            images: Images, (B, 3, H, W).
            context: Labels, domains and origin of a training batch, instead of the arguments below.
            labels: 1 present, 0 absent, NaN or negative where unknown, (B, L); or bool.
            domain: Domain number of each image from 0, (B,) int64.
            epoch: Epoch of training, counted from 1. Without it every epoch is the first, in which methods with a
                warm-up run their global operator.
            index: Number of each image in the training set, (B,) int64; needed by cached attention.
            flips: Whether the image was flipped horizontally and vertically, (B, 2) bool; used by cached attention.

        Returns:
            Without labels or context the backbone's own output. With them a `StyledOutput`; outside training its logits
            are the plain backbone's.
        """
        if context is None and labels is None:
            if self.training:
                raise ValueError(
                    "`labels` and `domain` must be given in training mode; got None. Call net(images, labels=labels, "
                    "domain=domain, epoch=epoch), net.eval(), or net.backbone(images) for the plain backbone."
                )
            return self.backbone(images)
        if context is None:
            assert labels is not None
            context = self._context(labels, domain, epoch, index, flips)
        if not self.training:
            return self._plain(self.backbone(images))
        self._check(images, context)
        batch, draws, cached = self._prepare(context)
        passed: dict[str, Styled] = {}
        hooks, captured = self._hooked(images, batch, draws, cached, passed)
        with hooks:
            output = self.backbone(images)
        return self._finish(output, batch, draws, passed, captured)

    @eager
    def loss(self, output: StyledOutput, labels: Tensor) -> Tensor:
        """Compute the method's whole objective with its own weights (Eq. 13).

        Args:
            output: Result of this network in training mode.
            labels: 1 present, 0 absent, NaN or negative where unknown, (B, L), or bool. Unknown labels take no part.

        Returns:
            Scalar loss.
        """
        if not isinstance(output, StyledOutput) or not output.diagnostics:
            got = "one of eval mode" if isinstance(output, StyledOutput) else type(output).__name__
            raise TypeError(
                f"`output` must be the result of net(images, labels=labels, domain=domain) in training mode; got {got}."
                " Call net.train() first; to score in eval mode, use "
                "torch.nn.functional.binary_cross_entropy_with_logits(net(images), labels)."
            )
        present, known = read_labels(labels)
        return objective(output, present, known=known, **self.loss_weights)

    @property
    def loss_weights(self) -> dict[str, Any]:
        """Weights of the method's objective, as arguments of ``ldstyle.functional.objective``."""
        attention = self.style.attention if isinstance(self.style, LabelDecoupledConfig) else None
        if not isinstance(attention, LLAMConfig):
            return {"diversity_weight": 0.0, "grounding_weight": 0.0}
        grounding = 0.0 if attention.grounding == "none" else attention.grounding_weight
        return {"diversity_weight": attention.diversity_weight, "grounding_weight": grounding}

    def distribute(self, *, rank: int, world: int, gather: Gather) -> None:
        """Make this network one of several that train on equal parts of each batch, like one that trains on all of it.

        Draws are made for the global batch, and the banks take in the styles and maps of all processes.

        Args:
            rank: Number of this process.
            world: Number of processes.
            gather: Collects a tensor from all of them.
        """
        self.rank, self.world = rank, world
        for module in self.modules():
            if isinstance(module, StyleBank | GradCamBank):
                module.gather = gather

    def refresh_due(self, epoch: int) -> bool:
        """Whether cached maps are to be rebuilt after ``epoch`` epochs: after epoch W, then every R epochs."""
        style = self.style
        if not isinstance(style, LabelDecoupledConfig) or not isinstance(style.attention, GradCamConfig):
            return False
        since = epoch - style.warmup_epochs
        match style.attention.refresh:
            case "sweep":
                return since >= 0 and since % style.attention.refresh_every == 0
            case "never":
                return since == 0
            case _:
                return False

    def refresh(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Rebuild the cached maps from (images, present, index) batches of the un-augmented training set."""
        attention = self.style.attention if isinstance(self.style, LabelDecoupledConfig) else None
        if self.cams is None or self.head is None or not isinstance(attention, GradCamConfig):
            raise ValueError(f"Only Grad-CAM attention has maps to rebuild; this network's style is {self.style}.")
        refresh_bank(
            self.backbone, self.head, self.cams, batches, flips=attention.average_flips, scales=attention.scales
        )

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return the state of the random streams, for resuming."""
        return self.streams.state_dict()

    def set_extra_state(self, state: Any) -> None:
        """Continue the random streams of a checkpoint."""
        self.streams.load_state_dict(state)

    @eager
    def _context(
        self, labels: Tensor, domain: Tensor | None, epoch: int | None, index: Tensor | None, flips: Tensor | None
    ) -> StyleContext:
        if domain is None:
            raise ValueError("`domain` must be given with `labels`; got None. Give the domain of each image, (B,).")
        context = StyleContext.of_labels(labels, domain, index=index, flips=flips, epoch=1 if epoch is None else epoch)
        if self.training:
            self._advice.check(context, self.cams, epoch=epoch)
        return context

    @eager
    def _plain(self, output: Any) -> StyledOutput:
        logits = logits_of(output)
        return StyledOutput(logits, logits.new_zeros(()))

    @eager
    def _check(self, images: Tensor, context: StyleContext) -> None:
        expected = (images.shape[0], self.num_labels)
        if tuple(context.present.shape) != expected:
            raise ValueError(
                f"`labels` (`context.present`) must have shape (B, L) = {expected} to match the images and num_labels; "
                f"got {tuple(context.present.shape)}."
            )
        if self.cams is not None:  # at the first step, not when the first maps are used
            self.cams.checked(context.index)

    @eager
    def _prepare(self, context: StyleContext) -> tuple[PairedContext, list[StyleDraws | None], CachedMaps | None]:
        """Make all random draws and all look-ups of the batch, on the host."""
        batch = PairedContext.on_host(context)
        rows = Rows(len(batch.present), self.rank, self.world)
        gates = [bool(self.streams["gate"].random() < self.style.gate_prob) for _ in self.points]
        draws: list[StyleDraws | None] = [None] * len(self.points)
        if not any(gates):
            return batch, draws, None
        for position, point in enumerate(self.points):
            if gates[position]:
                draws[position] = draw_style(
                    self.style, self.streams["style"], rows, num_labels=self.num_labels, channels=point.channels
                )
        return self._paired(batch, rows), draws, self._cached(batch)

    def _paired(self, batch: PairedContext, rows: Rows) -> PairedContext:
        matched, random = rows.take(self.streams["pairing"].random), rows.take(self.streams["pairing"].random)
        anything = torch.ones_like(batch.present)
        original = batch.original
        match self.style:
            case GlobalConfig(pairing="crossdomain"):
                partner = match_partners(anything, batch.domain, random, original=original)
                return replace(batch, partner=partner, global_partner=partner)
            case GlobalConfig():
                return replace(batch, global_partner=random_partners(random, original))
            case LabelDecoupledConfig(label_matched=label_matched, partner_choice=choice):
                labels = batch.present if label_matched else anything
                partner = match_partners(labels, batch.domain, matched, original=original, choice=choice)
                return replace(batch, partner=partner, global_partner=random_partners(random, original))

    def _cached(self, batch: PairedContext) -> CachedMaps | None:
        if self.cams is None or not isinstance(self.style, LabelDecoupledConfig):
            return None
        if batch.epoch <= self.style.warmup_epochs or not self.cams.ready:
            return None
        return self.cams.lookup(batch.index, batch.flips, batch.present)

    @eager
    def _hooked(
        self,
        images: Tensor,
        batch: PairedContext,
        draws: Sequence[StyleDraws | None],
        cached: CachedMaps | None,
        passed: dict[str, Styled],
    ) -> tuple[ExitStack, dict[str, Tensor]]:
        """Hook the style modules into the backbone until the stack is closed; ``passed`` collects their results."""
        drawn = {point.name: draw for point, draw in zip(self.points, draws, strict=True)}

        def restyle(point: InsertionPoint, feats: Tensor) -> Tensor:
            if point.name in passed:
                raise RuntimeError(
                    f"Each insertion point must be passed once in a forward call; '{point.name}' is twice."
                )
            # Earlier in the forward pass, which need not be earlier in the list of stages.
            clean = all(drawn[earlier] is None for earlier in passed)
            module = self.styles[self.points.index(point)]
            passed[point.name] = _apply(module, feats, replace(batch, clean=clean), drawn[point.name], cached)
            return passed[point.name].feats

        with ExitStack() as stack:
            size = (images.shape[2], images.shape[3])
            stack.enter_context(visiting(self.backbone, self.points, size, restyle))
            looks = self._grounded or (self._online and all(draw is None for draw in draws))
            last = [self.head.point] if looks and self.head else []
            captured = stack.enter_context(capture(self.backbone, last, images))
            return stack.pop_all(), captured

    @eager
    def _finish(
        self,
        output: Any,
        batch: PairedContext,
        draws: Sequence[StyleDraws | None],
        passed: Mapping[str, Styled],
        captured: Mapping[str, Tensor],
    ) -> StyledOutput:
        logits = logits_of(output)
        if logits.shape != batch.present.shape:
            raise ValueError(
                f"The backbone must return one logit per label, {tuple(batch.present.shape)}; got "
                f"{tuple(logits.shape)}. Build it with num_classes={self.num_labels}."
            )
        styled = _collect(logits, self.points, passed, draws)
        if isinstance(self.style, LabelDecoupledConfig):
            styled.diagnostics["labels_mixed"] = _mixed_fraction(batch.present, passed.values())
        last_map = captured[self.head.point.name].detach() if self.head and captured else None
        if last_map is not None and self._grounded:
            return replace(styled, grounding=self._ground(last_map, logits, batch, passed.values()))
        if last_map is not None:
            self._remember(last_map, batch)
        return styled

    def _ground(self, feats: Tensor, logits: Tensor, batch: PairedContext, passed: Iterable[Styled]) -> Tensor:
        """Compare learned attention with the class activation maps of this pass, where the label is predicted."""
        assert isinstance(self.head, LinearHead)
        assert isinstance(self.style, LabelDecoupledConfig)
        assert isinstance(self.style.attention, LLAMConfig)
        attention = self.style.attention
        maps, keep = linear_maps(self.backbone, self.head, feats).relu(), predicted(logits.detach(), batch.present)
        losses = []
        for styled in passed:
            assert styled.logits is not None
            size = (styled.logits.shape[2], styled.logits.shape[3])
            target = threshold_maps(resize_maps(maps, size), threshold=attention.grounding_threshold)
            target = unit_mass(target, keep)
            found = target.flatten(2).any(dim=-1)  # a map without a positive part is left out
            losses.append(attention_cross_entropy(styled.logits, target, found, temperature=attention.temperature))
        return torch.stack(losses).mean()

    def _remember(self, feats: Tensor, batch: PairedContext) -> None:
        """Update cached maps from a training batch that no module has touched."""
        assert self.cams is not None
        assert isinstance(self.head, LinearHead)
        maps = linear_maps(self.backbone, self.head, feats)
        logits = linear_logits(self.backbone, self.head, maps)
        self.cams.store(self.cams.checked(batch.index), maps, predicted(logits, batch.present), batch.flips)


def _build(style: StyleConfig, point: InsertionPoint, num_labels: int) -> nn.Module:
    match style:
        case GlobalConfig():
            return GlobalStyle(style)
        case LabelDecoupledConfig():
            return LabelDecoupledStyle(style, point.channels, num_labels)


def _apply(
    module: nn.Module, feats: Tensor, batch: PairedContext, draws: StyleDraws | None, cached: CachedMaps | None
) -> Styled:
    """Pass a feature map through a style module."""
    if isinstance(module, LabelDecoupledStyle):
        styled: Styled = module(feats, batch, draws, cached)
        return styled
    if draws is None:
        return Styled(feats)
    mixed = module(feats, batch.global_partner, draws)
    return Styled(mixed, change=relative_change(feats, mixed))


def _mixed_fraction(present: Tensor, results: Iterable[Styled]) -> Tensor:
    """Return the fraction of present labels that the per-label path of any module restyled, on the host."""
    restyled = torch.zeros_like(present)
    for result in results:
        restyled = restyled if result.restyled is None else restyled | result.restyled
    return restyled.sum() / present.sum().clamp(min=1)


def _collect(
    logits: Tensor,
    points: Sequence[InsertionPoint],
    passed: Mapping[str, Styled],
    draws: Sequence[StyleDraws | None],
) -> StyledOutput:
    missed = [point.name for point in points if point.name not in passed]
    if missed:
        raise RuntimeError(f"Each insertion point must be passed once in a forward call; {missed} were not passed.")
    results = [passed[point.name] for point in points]
    diversities = [result.diversity for result in results if result.diversity is not None]
    diversity = torch.stack(diversities).mean() if diversities else logits.new_zeros(())
    attention = {p.name: r.attn for p, r in zip(points, results, strict=True) if r.attn is not None}
    fired = sum(draw is not None for draw in draws)
    diagnostics = {"fired": torch.tensor(fired)}
    for point, result in zip(points, results, strict=True):
        if result.clamped is not None:
            diagnostics[f"clamped/{point.name}"] = result.clamped
        if result.change is not None:
            diagnostics[f"strength/{point.name}"] = result.change.mean()
        if result.locations is not None:
            diagnostics[f"locations/{point.name}"] = result.locations
    evidence = [result.evidence for result in results if result.evidence is not None]
    return StyledOutput(logits, diversity, attention, diagnostics, torch.stack(evidence) if evidence else None)
