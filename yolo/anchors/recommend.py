"""Which anchors to train with: others than the published ones only where they are safely better."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from yolo.anchors.sizes import Boxes, Floats, nearest
from yolo.anchors.statistics import Fit

FOLDS = 5
MANY = 50_000  # boxes


@dataclass(frozen=True)
class Rules:
    """When anchors are worth a change; shares and IoU, 0 to 1.

    Args:
        gain: Average IoU that they must add; at least half of it on boxes that they were not fitted to, and
            in the mean over the classes.
        recall_gain: Or recall that they must add.
        recall_loss: Recall that they may lose.
        class_loss: Average IoU that a class may lose, if it has boxes enough to tell.
        closest: Shape IoU that two anchors may have; nearer ones compete for the same objects.
        starved: A head that trained on more than ``fed`` of the boxes must not fall below this.
        fed: See ``starved``.
        floating: Rise of the share of boxes that stand between two heads (``Fit.floating``) that is accepted.
        positives: Factor by which the predictions that answer for one box may grow: where every anchor fits
            every box, the heads no longer share the work.
        boxes_per_anchor: Boxes that it takes to fit one anchor, or to judge a class.
    """

    gain: float = 0.02
    recall_gain: float = 0.05
    recall_loss: float = 0.005
    class_loss: float = 0.02
    closest: float = 0.7
    starved: float = 0.01
    fed: float = 0.05
    floating: float = 0.1
    positives: float = 1.5
    boxes_per_anchor: int = 20


@dataclass(frozen=True)
class Verdict:
    """The set to train with, and why.

    Args:
        name: Of the set.
        reasons: One sentence each, about every set that was looked at.
    """

    name: str
    reasons: tuple[str, ...]


def objections(
    fit: Fit, default: Fit, boxes: Boxes, held_out: float | None = None, rules: Rules | None = None
) -> list[str]:
    """What speaks against training with ``fit`` in place of ``default``; nothing if it is safe and worth it.

    Args:
        fit: Of the set in question.
        default: Of the model's own anchors.
        boxes: What the set was fitted to, each box once.
        held_out: Average IoU gained on boxes that it was not fitted to, where that was measured.
        rules: Limits.
    """
    rules = rules or Rules()
    if len(fit.anchors) != len(default.anchors):
        counts = f"{len(fit.anchors)} anchors in place of {len(default.anchors)}"
        return [f"{counts}: the average IoU grows with their number alone, so only training can compare them"]
    found = [*_worth(fit, default, held_out, rules), *_heads(fit, default, rules)]
    number = boxes.all.boxes
    if number < rules.boxes_per_anchor * len(fit.anchors):
        found.append(f"{number} boxes are too few to fit {len(fit.anchors)} anchors to")
    for name, before in default.class_iou.items():
        loss, enough = before - fit.class_iou[name], boxes.by_class[name].boxes >= rules.boxes_per_anchor
        if enough and loss > rules.class_loss:
            found.append(f"class {name} loses {loss:.3f} of its average IoU")
    return found


def _worth(fit: Fit, default: Fit, held_out: float | None, rules: Rules) -> list[str]:
    """Too little is gained, or something is lost."""
    gain, recall_gain = fit.average_iou - default.average_iou, fit.recall - default.recall
    class_gain = fit.mean_class_iou - default.mean_class_iou
    found = []
    if gain < rules.gain and recall_gain < rules.recall_gain:
        found.append(f"the defaults are as good (average IoU {gain:+.3f}, recall {recall_gain:+.3f})")
    elif held_out is not None and held_out < rules.gain / 2:
        found.append(f"on boxes it was not fitted to the average IoU changes by {held_out:+.3f} only")
    elif class_gain < min(gain, rules.gain / 2):
        found.append(f"in the mean over the classes the average IoU changes by {class_gain:+.3f} only")
    if recall_gain < -rules.recall_loss:
        found.append(f"recall ({fit.assignment.served}) falls by {-recall_gain:.3f}")
    return found


def _heads(fit: Fit, default: Fit, rules: Rules) -> list[str]:
    """The anchors get in each other's way, or the heads would be trained badly."""
    found = []
    if fit.closest > max(rules.closest, default.closest):
        found.append(
            f"two anchors are nearly the same (IoU {fit.closest:.2f}) and would compete for the same objects"
        )
    for spec, before, after in zip(fit.specs, default.heads, fit.heads, strict=True):
        if before > rules.fed and after < rules.starved:
            found.append(
                f"the head of stride {spec.stride:g} would train on {after:.1%} of boxes, not {before:.1%}"
            )
    if len(fit.misplaced) > len(default.misplaced):
        sizes = ", ".join(f"{fit.anchors[i][0]:.0f}x{fit.anchors[i][1]:.0f}" for i in fit.misplaced)
        found.append(f"anchors of a size that belongs to another head: {sizes}")
    if fit.lost > default.lost + rules.recall_loss:
        found.append(
            f"no head would train on {fit.lost:.1%} of the boxes, with the defaults {default.lost:.1%}"
        )
    if fit.floating > default.floating + rules.floating:
        share = f"{fit.floating:.0%} of the boxes would stand between two heads"
        found.append(f"{share}, with the defaults {default.floating:.0%}")
    if fit.positives > default.positives * rules.positives:
        share = f"{fit.positives:.1f} predictions would answer for each box"
        found.append(f"{share}, with the defaults {default.positives:.1f}")
    return found


def recommend(
    fits: Mapping[str, Fit],
    default: str,
    boxes: Boxes,
    held_out: Mapping[str, float] | None = None,
    rules: Rules | None = None,
) -> Verdict:
    """The first of ``fits`` that nothing speaks against, otherwise the default.

    Args:
        fits: Sets by name, the model's own among them, the most careful first.
        default: Name of the model's own.
        boxes: What they were fitted to, each box once.
        held_out: :func:`held_out_gain` of the sets for which it was measured.
        rules: Limits.
    """
    own = fits[default]
    reasons, safe = [], []
    for name, fit in fits.items():
        if name == default:
            continue
        against = objections(fit, own, boxes, (held_out or {}).get(name), rules)
        gains = f"average IoU {fit.average_iou - own.average_iou:+.3f}, recall {fit.recall - own.recall:+.3f}"
        if against:
            reasons.append(f"{name} ({gains}): no: {'; '.join(against)}")
        else:
            safe.append(name)
            reasons.append(f"{name} ({gains}): nothing against it")
    return Verdict((*safe, default)[0], tuple(reasons))


def held_out_gain(
    boxes: Boxes,
    default: Floats,
    fit: Callable[[Boxes], Floats],
    factors: Sequence[float] = (1.0,),
    seed: int = 0,
) -> float | None:
    """Average IoU that anchors fitted to four fifths of the boxes add on the last, in the mean of five turns.

    Args:
        boxes: Each box once.
        default: ``[A, 2]`` the model's own anchors.
        fit: From boxes to anchors.
        factors: Scales at which training shows every box.
        seed: Of the split.

    Returns:
        None for so many boxes that a few anchors cannot fit one box more than another.
    """
    if boxes.all.boxes > MANY:
        return None
    gained, number = 0.0, 0
    for train, test in boxes.folds(FOLDS, seed):
        seen = test.all.scaled(factors)
        new, old = (nearest(seen.wh, anchors)[0] for anchors in (fit(train.scaled(factors)), default))
        gained += float((seen.count * (new - old)).sum())
        number += seen.boxes
    return gained / number
