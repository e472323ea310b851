"""Which sections and keys of a .cfg this package knows, and what it does with each.

Names from the parsers of both Darknets (``parser.c``): a key is *used* (it shapes the result), *loss* (it
shapes the training of a head and is kept in ``loss_options``), *training* (accepted and reported, without
effect here) or *refused* unless it has the value that leaves the result alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

ALIASES = {
    "network": "net",
    "conv": "convolutional",
    "max": "maxpool",
    "avg": "avgpool",
    "conn": "connected",
    "soft": "softmax",
    "deconv": "deconvolutional",
    "lrn": "normalization",
    "gaussian_yolo": "Gaussian_yolo",
}

RECURRENT = frozenset({"rnn", "gru", "lstm", "crnn", "conv_lstm", "history"})
REFUSED_SECTIONS = {
    **dict.fromkeys(RECURRENT, "recurrent layers are not supported"),
    "Gaussian_yolo": "the Gaussian head (box uncertainty) is not supported",
    "contrastive": "contrastive embedding heads are not supported",
    "local_avgpool": "windowed average pooling is not supported",
    "normalization": "local response normalization is not supported",
    "deconvolutional": "transposed convolution is not supported",
    "implicit": "implicit layers are not supported",
    "l2norm": "L2 normalization is not supported",
    "logistic": "the logistic loss layer is not supported",
    "logxent": "the logistic loss layer is not supported",
    "iseg": "instance segmentation heads are not supported",
    "active": "the separate activation layer is not supported",
    "activation": "the separate activation layer is not supported",
    "empty": "the empty layer is not supported",
    "silence": "the empty layer is not supported",
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Keys:
    """The keys of one section."""

    used: frozenset[str] = frozenset()
    loss: frozenset[str] = frozenset()
    training: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)  # key -> the value that is harmless


# any layer may carry these (parser.c, parse_network_cfg)
TRAINING_ANYWHERE = _words(
    "stopbackward onlyforward learning_rate clip train_only_bn burnin_update dontsave reject"
)
REFUSED_ANYWHERE = {"dontload": "0", "dontloadscales": "0"}  # they change what the weights file holds

_COLOUR = "angle saturation exposure hue"
_RATES = """learning_rate learning_rate_min momentum decay burn_in power policy step scale steps scales
    seq_scales gamma max_batches max_epochs sgdr_cycle sgdr_mult adam B1 B2 eps ema_alpha loss_scale
    grad_centr equidistant_point num_sigmas_reject_badlabels badlabels_rejection_percentage
    badlabels_reject_threshold weights_reject_freq"""
_PICTURES = """aspect max_crop min_crop center flip blur gaussian_noise mixup mosaic mosaic_bound cutmix
    letter_box adversarial_lr max_chart_loss random notruth"""
_RUN = """batch subdivisions time_steps track augment_speed init_sequential_subdivisions
    sequential_subdivisions dynamic_minibatch optimized_memory workspace_size_limit_MB try_fix_nan contrastive
    contrastive_jit_flip contrastive_color unsupervised label_smooth_eps seen resize_step
    attention gpu_index"""
_SCALES = "object_scale noobject_scale class_scale coord_scale"

SECTIONS: dict[str, Keys] = {
    "net": Keys(
        used=_words("width height channels inputs"),
        training=_words(" ".join((_COLOUR, _RATES, _PICTURES, _RUN))),
    ),
    "convolutional": Keys(
        used=_words(
            """batch_normalize filters size stride stride_x stride_y dilation pad padding activation groups
            share_index"""
        ),
        training=_words("cbn bin_output"),  # bin_output chooses a storage form of binary networks only
        refused={
            **dict.fromkeys(("xnor", "binary", "antialiasing", "flipped", "dot", "assisted_excitation"), "0"),
            **dict.fromkeys(("sway", "rotate", "stretch", "stretch_sway", "deform", "coordconv"), "0"),
        },
    ),
    "local": Keys(used=_words("filters size stride pad activation")),
    "connected": Keys(used=_words("output activation batch_normalize")),
    "batchnorm": Keys(),
    "maxpool": Keys(
        used=_words("size stride stride_x stride_y padding"),
        refused={"maxpool_depth": "0", "antialiasing": "0"},
    ),
    "avgpool": Keys(),
    "route": Keys(used=_words("layers groups group_id"), training=_words("stream")),
    "shortcut": Keys(
        used=_words("from activation alpha beta"),
        refused={"weights_type": "none"},
        training=_words("weights_normalization"),
    ),
    "scale_channels": Keys(used=_words("from activation scale_wh")),
    "sam": Keys(used=_words("from activation")),
    "upsample": Keys(used=_words("stride scale")),
    "reorg": Keys(used=_words("stride reverse extra"), refused={"flatten": "0"}),
    "reorg3d": Keys(used=_words("stride"), refused={"reverse": "0"}),
    "dropout": Keys(
        used=_words("probability"), training=_words("dropblock dropblock_size_rel dropblock_size_abs")
    ),
    "softmax": Keys(
        used=_words("groups temperature"), training=_words("noloss"), refused={"spatial": "0", "tree": ""}
    ),
    "crop": Keys(used=_words("crop_width crop_height noadjust"), training=_words(f"flip shift {_COLOUR}")),
    "cost": Keys(training=_words("type scale ratio sse threshold noobj")),
    "detection": Keys(
        used=_words("classes coords side num softmax sqrt"),
        loss=_words(f"rescore forced random {_SCALES}"),
        training=_words("jitter max"),
        refused={"reorg": "0"},
    ),
    "region": Keys(
        used=_words("classes coords num anchors softmax"),
        loss=_words(f"bias_match rescore thresh classfix focal_loss {_SCALES} mask_scale"),
        training=_words("jitter random absolute max log map"),
        refused={"tree": "", "background": "0"},
    ),
    "yolo": Keys(
        used=_words("classes num mask anchors scale_x_y new_coords"),
        loss=_words(
            """ignore_thresh truth_thresh iou_loss iou_normalizer cls_normalizer obj_normalizer
            delta_normalizer iou_thresh iou_thresh_kind label_smooth_eps objectness_smooth focal_loss
            max_delta counters_per_class"""
        ),
        training=_words(
            """jitter random resize nms_kind beta_nms beta1 max map show_details uc_normalizer
            track_history_size sim_thresh dets_for_show dets_for_track track_ciou_norm"""
        ),
        refused={"embedding_layer": ""},
    ),
}
HEADS = frozenset({"detection", "region", "yolo"})
