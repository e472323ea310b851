import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.darknet.golden import layer_case, logistic, picture, set_epsilon
from tests.helpers.paths import shared
from yolo import models
from yolo.darknet import (
    build_cfg,
    build_classifier,
    build_network,
    from_cfg,
    import_network,
    load_weights,
    native_slots,
    parse_cfg,
    plan,
    read_cfg,
)
from yolo.darknet.graph import Graph, build_modules
from yolo.losses import build_loss
from yolo.models import backbones
from yolo.models.detector import Detector
from yolo.models.layers import darknet_layers
from yolo.ops.decode import decode
from yolo.types import Targets

MINI = ["v1_alexey", "v1_pjreddie", "v2_alexey", "v2_pjreddie", "v3_alexey", "v3_pjreddie", "v4_alexey"]
MICRO = ["v1_fc", "v1_local", "v2_reorg", "v3", "v3_spp", "v3tiny_pool", "v4", "v4tiny", "dw_group"]
TINY = """[net]
width=64
height=96
channels=3
[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=leaky
[maxpool]
[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=mish
[convolutional]
filters=21
activation=linear
[yolo]
mask=2,3,4
anchors=1,2, 3,4, 5,6, 7,8, 9,10
num=5
classes=2
ignore_thresh=.7
"""


def corpus(name: str):
    return plan(parse_cfg(read_cfg(shared("darknet", *name.split("/")))))


@pytest.mark.parametrize("name", MINI)
def test_every_layer_of_a_small_network_is_darknets(name: str) -> None:
    about, arrays = layer_case(f"mini_{name}")
    detector = build_cfg(about["cfg"]).eval()
    load_weights(detector.slots, shared("golden", "layers", about["weights_file"]))
    modules = {int(k): v for k, v in (*detector.backbone.layers.items(), *detector.head.layers.items())}
    graph = Graph(detector.plan, modules, [-1], list(modules))
    if name.endswith("pjreddie"):
        set_epsilon(detector, 1e-6)  # P's CPU code divides by sqrt(v) + 1e-6
    with torch.inference_mode():
        outputs = dict(zip(modules, graph.run([torch.from_numpy(arrays["input"])]), strict=True))
    compared = 0
    for key, wanted in arrays.items():
        if key.startswith("layer") and int(key[5:].partition("_")[0]) in outputs:
            found = outputs[int(key[5:].partition("_")[0])].numpy().reshape(wanted.shape)
            np.testing.assert_allclose(found, wanted, 2e-3, 2e-3, err_msg=key)
            compared += 1
    assert compared >= 5


@pytest.mark.parametrize("name", MINI)
def test_boxes_of_a_small_network_are_darknets(name: str) -> None:
    about, arrays = layer_case(f"mini_{name}")
    detector = build_cfg(about["cfg"]).eval()
    load_weights(detector.slots, shared("golden", "layers", about["weights_file"]))
    if name.endswith("pjreddie"):
        set_epsilon(detector, 1e-6)
    with torch.inference_mode():
        boxes, scores = decode(detector(torch.from_numpy(arrays["input"])), detector.specs)
    boxes, scores = boxes[0].numpy(), scores[0].numpy()
    height, width = arrays["input"].shape[2:]
    boxes = boxes / ([width, height] * 2)
    if detector.specs[0].kind == "grid":  # Darknet gives pixels of the picture here
        boxes = boxes * ([about["image_w"], about["image_h"]] * 2)
    elif name.endswith("pjreddie"):  # undoes the letterbox: 640x480 became 42x32 of 64x32
        boxes[:, ::2] = (boxes[:, ::2] - 11 / 64) / (42 / 64)
    scores[scores <= about["thresh"]] = 0
    found = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2], scores], 1)
    wanted = np.delete(arrays["dets_none"], 4, axis=1)  # without the objectness
    found, wanted = (rows[rows[:, 4:].max(1) > 0] for rows in (found, wanted))
    assert len(found) == len(wanted) > 0
    difference = np.abs(found[:, None] - wanted) / (1 + np.abs(wanted))
    assert sorted(difference.max(2).argmin(1)) == list(range(len(wanted)))
    assert difference.max(2).min(1).max() < 2e-3


@pytest.mark.parametrize("name", MICRO)
def test_micro_networks_end_as_both_darknets_do(name: str) -> None:
    cfg = shared("golden", "micro", f"micro_{name}.cfg")
    network = import_network(cfg, cfg.with_suffix(".weights"))
    assert isinstance(network, Detector)
    with torch.inference_mode():
        outputs = network.eval()(picture(cfg.with_suffix(".png")))
    raw, spec = outputs[-1][0].numpy(), network.specs[-1]
    with np.load(cfg.with_suffix(".npz")) as arrays:
        for key in ("darknet_last", "alexeyab_last"):
            if key in arrays:
                alexey = key == "alexeyab_last"
                found = activated(raw, spec, alexey).reshape(arrays[key].shape)
                assert np.abs(found - arrays[key]).max() < (2e-4 if alexey else 2e-3), key
        heads = [arrays[key] for key in arrays if key.startswith("opencv")]
    for found, wanted in zip(outputs, heads, strict=False):
        assert np.abs(found[0].numpy() - wanted).max() < 5e-3  # OpenCV's epsilon is 1e-6


def activated(raw: np.ndarray, spec, alexey: bool) -> np.ndarray:
    """What each Darknet does to a head in place (darknet.md, sections 1 to 3)."""
    if spec.kind == "grid":
        return raw
    x = raw.reshape(spec.num_anchors, 5 + spec.num_classes, *raw.shape[1:]).copy()
    x[:, 4] = logistic(x[:, 4])
    if spec.kind == "region":
        e = np.exp(x[:, 5:] - x[:, 5:].max(1, keepdims=True))
        x[:, 5:] = e / e.sum(1, keepdims=True)
        if alexey:  # cell-major, x and y raw
            return x.transpose(2, 3, 0, 1)
        x[:, :2] = logistic(x[:, :2])
        return x
    x[:, 5:] = logistic(x[:, 5:])
    x[:, :2] = logistic(x[:, :2])
    if alexey:
        x[:, :2] = spec.xy_scale * x[:, :2] - (spec.xy_scale - 1) / 2
    return x


@pytest.mark.parametrize(
    ("name", "start", "generation", "stride"),
    [
        ("pjreddie/cfg/yolov3.cfg", 75, "v3", 32),
        ("pjreddie/cfg/yolov3-tiny.cfg", 12, "v3", 32),
        ("pjreddie/cfg/yolov2.cfg", 29, "v2", 32),
        ("alexeyab/cfg/yolov4.cfg", 132, "v4", 32),
        ("alexeyab/cfg/yolov4-tiny.cfg", 26, "v4", 32),
        ("pjreddie/cfg/yolov1.cfg", 26, "v1", 64),
        ("alexeyab/cfg/yolov4-p6.cfg", 290, "v4", 64),
    ],
)
def test_backbone_and_head_part_where_the_neck_begins(
    name: str, start: int, generation: str, stride: int
) -> None:
    with torch.device("meta"):
        network = build_network(corpus(name))
    assert isinstance(network, Detector)
    assert min(map(int, network.head.layers)) == start
    assert network.generation == generation
    assert network.stride == stride
    assert [p.weight.shape[0] for p in network.predictors] == [spec.channels for spec in network.specs]
    names = [n for n, _ in network.named_parameters()]
    assert all(n.startswith(("backbone.layers.", "head.layers.")) for n in names)


def test_heads_carry_what_decoding_and_training_need() -> None:
    with torch.device("meta"):
        v4 = build_network(corpus("alexeyab/cfg/yolov4.cfg"))
        csp = build_network(corpus("alexeyab/cfg/yolov4-csp.cfg"))
        v2 = build_network(corpus("pjreddie/cfg/yolov2-voc.cfg"))
        native = models.yolov4()
    assert v4.specs == native.specs
    assert v4.loss_options[0] == {
        "ignore_thresh": 0.7, "truth_thresh": 1.0, "iou_thresh": 0.213, "cls_normalizer": 1.0,
        "iou_normalizer": 0.07, "iou_loss": "ciou", "max_delta": 5.0,
    }  # fmt: skip
    assert [spec.squared for spec in csp.specs] == [True] * 3
    assert [spec.xy_scale for spec in csp.specs] == [2.0] * 3
    assert v2.specs[0].anchors[0] == (1.3221 * 32, 1.73145 * 32)
    assert v2.specs[0].softmax
    assert v2.loss_options[0]["object_scale"] == 5.0
    assert v4.recipe.name == "darknet"
    assert v4.recipe.arguments == {"cfg": v4.plan.cfg.text, "header": [0, 2, 5, 0]}


def test_a_mask_takes_its_anchors_from_the_list() -> None:
    (spec,) = build_cfg(TINY).specs
    assert spec.anchors == ((5.0, 6.0), (7.0, 8.0), (9.0, 10.0))
    assert spec.stride == 4
    assert spec.xy_scale == 1.0


def test_a_fresh_network_trains_like_any_other() -> None:
    torch.manual_seed(0)
    detector = build_cfg(TINY.replace("[maxpool]", "[maxpool]\nsize=2\nstride=1"))
    images = torch.rand(2, 3, 96, 64)
    targets = Targets(torch.tensor([[4.0, 8.0, 30.0, 40.0]]), torch.tensor([1]), torch.tensor([0]))
    criterion = build_loss(detector, "darknet")
    optimizer = torch.optim.Adam(detector.parameters(), 0.01)
    losses = []
    for _ in range(30):
        parts = criterion(detector(images), targets, (96, 64))
        loss = torch.stack(list(parts.values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 40
    assert losses[-1] < losses[0] / 2
    assert all(p.grad is not None for p in detector.parameters())


def test_any_multiple_of_the_stride_goes_in_and_nothing_else() -> None:
    detector = build_cfg(TINY.replace("[maxpool]", "[maxpool]\nsize=2\nstride=2")).eval()
    assert detector.stride == 8
    assert detector.input_size == (96, 64)
    assert detector(torch.zeros(1, 3, 40, 64))[0].shape == (1, 21, 5, 8)
    with pytest.raises(ValueError, match="multiple of 8"):
        detector(torch.zeros(1, 3, 44, 64))


def test_outputs_nobody_reads_any_more_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = corpus("pjreddie/cfg/yolov3-tiny.cfg")
    with torch.device("meta"):
        graph = Graph(layers, build_modules(layers), [-1], [15, 22])
        graph.run([torch.zeros(1, 3, 416, 416)])
    freed = {source for done in graph.done.values() for source in done}
    assert freed == set(range(-1, 22)) - {15, 16}


def test_copies_share_what_the_original_shares() -> None:
    conv = "[convolutional]\nbatch_normalize=1\nfilters=3\nsize=3\npad=1\nactivation=leaky\n"
    network = build_classifier(f"[net]\nwidth=8\nheight=8\n{conv}{conv}share_index=-1\n")
    twin = copy.deepcopy(network)
    twin.load_state_dict(network.state_dict())
    assert twin.head.layers["0"].conv.weight is twin.head.layers["1"].conv.weight


@pytest.mark.parametrize(("name", "function"), [("darknet19", "darknet19"), ("darknet53", "darknet53")])
def test_classifiers_are_the_native_ones_and_lend_their_backbone(name: str, function: str) -> None:
    torch.manual_seed(0)
    native = getattr(backbones, function)(num_classes=10, width=0.125).eval()
    filters = iter([layer for layer, _ in darknet_layers(native)])
    rows = []
    for row in read_cfg(shared("darknet", "pjreddie", "cfg", f"{name}.cfg")).splitlines():
        rows.append(f"filters={next(filters).out_channels}" if row.startswith("filters=") else row)
    network = build_classifier("\n".join(rows)).eval()
    assert network.num_classes == 10
    for theirs, slot in zip(native_slots(native), network.slots, strict=True):
        for value, place in zip(theirs.tensors, slot.tensors, strict=True):
            place.data.copy_(value)
    x = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(network(x), native(x), rtol=1e-4, atol=1e-4)


def test_a_classifier_learns() -> None:
    torch.manual_seed(0)
    text = TINY[: TINY.index("[convolutional]\nfilters=21")].replace(
        "[maxpool]", "[maxpool]\nsize=2\nstride=2"
    )
    network = build_classifier(
        f"{text}[convolutional]\nfilters=4\nactivation=linear\n[avgpool]\n[softmax]\n[cost]\n"
    )
    labels = torch.arange(4)
    images = labels.reshape(4, 1, 1, 1) / 4 + 0.05 * torch.rand(4, 3, 96, 64)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9)
    for _ in range(40):
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert network(images).shape == (4, 4)
    assert loss.item() < 0.2


def test_from_cfg_changes_the_classes(tmp_path) -> None:
    path = tmp_path / "a.cfg"
    path.write_text(TINY.replace("[maxpool]", "[maxpool]\nsize=2\nstride=2"))
    assert from_cfg(str(path)).num_classes == 2
    detector = from_cfg(str(path), num_classes=7)
    assert detector.num_classes == 7
    assert isinstance(detector.predictors[0], nn.Conv2d)
    assert detector.predictors[0].out_channels == 3 * 12
