"""Classifiers: heads that change without forgetting, published weights under our names, what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from configs.errors import UsageError, WeightsError
from configs.units import CLASSES, NOTHING
from models.classifier import Classifier, adapted
from models.classifier_nets import N_OUTPUTS, TRUNKS, State, arch_of, from_published, grouped
from models.detector import DetectorSpec
from models.fake import FakeDetector
from models.imagenet import GROUPS, N_IMAGENET, class_of_index
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from models.zoo import ZOO, is_classifier, load_detector, new_detector
from scheduler.types import Detections, RetrainConfig
from tests.support.networks import settled

SPEC = DetectorSpec(arch="shufflenetv2-0.5", input_px=32)


def some_crops(n: int = 6) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.integers(0, 255, (20 + 5 * i, 30, 3)).astype(np.uint8) for i in range(n)]


def probabilities(model: Classifier) -> torch.Tensor:
    with torch.no_grad():
        return model._model(model._input(some_crops())).softmax(dim=1)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    model = settled(Classifier(SPEC, seed=2))
    assert isinstance(model, Classifier)
    return model


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [(64,), (8,), (64, 0), (64, 16, 128), (1024, 0)])
def test_a_head_of_another_width_says_the_same(classifier: Classifier, path: tuple[int, ...]) -> None:
    model = classifier
    for neurons in path:
        model = model.with_head(neurons)
        assert model.head_neurons == neurons
    assert torch.allclose(probabilities(model), probabilities(classifier), atol=1e-5)


def test_a_narrow_head_keeps_what_fits(classifier: Classifier) -> None:
    """4 neurons cannot carry 8 independent outputs; the nearest function of that rank is kept."""
    sharp = classifier.clone()
    with torch.no_grad():
        sharp._model.head.out.weight.mul_(20)  # type: ignore[union-attr]
    narrow = sharp.with_head(4)
    fresh = Classifier(SPEC, seed=9).with_head(4)
    wanted = probabilities(sharp)
    assert (probabilities(narrow) - wanted).abs().mean() < 0.5 * (probabilities(fresh) - wanted).abs().mean()


def test_the_same_width_keeps_the_same_weights(classifier: Classifier) -> None:
    wide = classifier.with_head(64)
    with torch.no_grad():
        wide._model.head.added.weight.add_(0.1)  # type: ignore[union-attr]
    again = wide.with_head(64)
    assert all(torch.equal(t, again.state()[name]) for name, t in wide.state().items())
    assert again is not wide


def test_every_neuron_of_a_new_layer_can_learn(classifier: Classifier) -> None:
    """Also those that carry nothing yet, and those of a head that knew nothing."""
    blank = classifier.clone()
    with torch.no_grad():
        for parameter in blank._model.head.parameters():
            parameter.zero_()
    for start in (classifier, blank):
        model = start.with_head(16)
        labels = [
            Detections(xyxy=np.zeros((1, 4), np.float32), score=np.ones(1, np.float32), class_id=np.array([i % 8]))
            for i in range(6)
        ]
        optimiser = torch.optim.SGD(model._model.head.parameters(), lr=0.5)
        before = model._model.head.state_dict()["out.weight"].clone()
        for _ in range(2):
            optimiser.zero_grad()
            model.loss(some_crops(), labels).backward()
            optimiser.step()
        moved = (model._model.head.state_dict()["out.weight"] - before).abs().sum(dim=0)
        assert (moved > 0).all()


def test_retraining_starts_from_the_head_it_asks_for(classifier: Classifier) -> None:
    plain, wide = RetrainConfig(name="plain"), RetrainConfig(name="wide", head_neurons=32)
    assert adapted(classifier, plain) is classifier
    asked = adapted(classifier, wide)
    assert isinstance(asked, Classifier)
    assert asked.head_neurons == 32
    assert adapted(asked, wide) is asked
    fake = FakeDetector()
    assert adapted(fake, plain) is fake
    with pytest.raises(UsageError, match="only classifiers have one") as caught:
        adapted(fake, wide)
    assert caught.value.subject == "wide"


def test_a_kept_model_comes_back_with_its_added_layer(classifier: Classifier, tmp_path: Path) -> None:
    wide = classifier.with_head(24)
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file(wide.state(), str(path), metadata={"arch": SPEC.arch})
    again = load_detector(f"{path}@32")
    assert isinstance(again, Classifier)
    assert again.head_neurons == 24
    assert torch.equal(probabilities(again), probabilities(wide))
    rebuilt = new_detector(wide.spec, state=wide.state())
    assert torch.equal(probabilities(rebuilt), probabilities(wide))  # type: ignore[arg-type]


def test_weights_of_another_head_are_refused_and_change_nothing(classifier: Classifier) -> None:
    model, wide = classifier.clone(), classifier.with_head(24)
    before = model.state()
    with pytest.raises(WeightsError, match=r"head\.out\.weight has shape"):
        model.load_state(wide.state())
    assert all(torch.equal(t, before[name]) for name, t in model.state().items())


def test_the_head_is_one_layer_and_the_last() -> None:
    model = Classifier(DetectorSpec(arch="resnet18", input_px=32)).with_head(16)
    layers = model.trainable_layers()
    assert len(layers) == 10  # first convolution, 8 blocks, head
    assert layers[-1] is model._model.head
    assert {name for name, _ in layers[-1].named_parameters()} == {"added.weight", "added.bias", "out.weight", "out.bias"}


# --- ImageNet ---------------------------------------------------------------------------------------------------------


def test_groups_do_not_overlap_and_name_our_classes() -> None:
    named = [index for indices in GROUPS.values() for index in indices]
    assert len(named) == len(set(named))
    assert set(GROUPS) == set(CLASSES)
    table = class_of_index()
    assert table.shape == (N_IMAGENET,)
    assert np.bincount(table, minlength=N_OUTPUTS).min() > 0


@pytest.mark.parametrize(
    ("class_name", "words"),
    [
        ("car", ("cab", "limousine", "minivan", "sports car", "convertible")),
        ("bus", ("school bus", "minibus", "trolleybus")),
        ("truck", ("garbage truck", "tow truck", "trailer truck", "fire engine", "pickup")),
        ("bicycle", ("mountain bike", "bicycle-built-for-two")),
        ("motorcycle", ("moped", "motor scooter")),
        ("animal", ("tabby", "golden retriever", "zebra", "African elephant", "ox", "robin")),
        ("person", ("jersey", "trench coat", "suit", "ballplayer", "backpack")),
        (None, ("street sign", "traffic light", "tench", "wool")),
    ],
)
def test_the_indices_mean_what_they_are_said_to(class_name: str | None, words: tuple[str, ...]) -> None:
    from models.classifier_nets import library

    names = library.ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    expected = NOTHING if class_name is None else CLASSES.index(class_name)
    assert {int(class_of_index()[names.index(word)]) for word in words} == {expected}


def imagenet_state(arch: str, seed: int = 0) -> State:
    """A file as torchvision publishes it, with random weights."""
    from models.classifier_nets import library

    makers = {"shufflenetv2-0.5": library.shufflenet_v2_x0_5, "mobilenetv2": library.mobilenet_v2, "resnet18": library.resnet18}
    torch.manual_seed(seed)
    return makers[arch](weights=None).state_dict()  # type: ignore[no-any-return]


@pytest.mark.parametrize("arch", ["shufflenetv2-0.5", "mobilenetv2", "resnet18"])
def test_a_torchvision_file_is_known_by_its_tensors_and_computes_the_same(arch: str, tmp_path: Path) -> None:
    from models.classifier_nets import library

    state = imagenet_state(arch)
    path = tmp_path / "published.safetensors"  # tensors in another order, no name of the arch
    safetensors.torch.save_file(state, str(path))
    model = load_detector(f"{path}@64")
    assert isinstance(model, Classifier)
    assert model.spec == DetectorSpec(arch=arch, input_px=64)
    theirs = {
        "shufflenetv2-0.5": library.shufflenet_v2_x0_5,
        "mobilenetv2": library.mobilenet_v2,
        "resnet18": library.resnet18,
    }[arch](weights=None)
    theirs.load_state_dict(state)
    theirs.eval()
    golden = Classifier(model.spec, state=state, imagenet_head=True)
    x = golden._input(some_crops())
    with torch.no_grad():
        normal = (x - golden._model.mean) / golden._model.std
        expected = theirs(normal).softmax(dim=1)  # (B, 1000)
        summed = torch.stack([expected[:, class_of_index() == k].sum(dim=1) for k in range(N_OUTPUTS)], dim=1)
        assert torch.allclose(golden._model(x).exp(), summed, atol=1e-5)


def test_a_golden_classifier_sums_probabilities_of_its_group() -> None:
    model = Classifier(SPEC, state=imagenet_state("shufflenetv2-0.5"), imagenet_head=True)
    found = probabilities(model)
    assert torch.allclose(found.sum(dim=1), torch.ones(len(found)), atol=1e-5)
    edge = model.with_head(0)
    assert set(edge.state()) >= {"head.out.weight", "head.out.bias"}


def test_a_first_head_is_the_mean_of_its_group_and_more_for_a_large_one() -> None:
    last = {"weight": torch.randn(N_IMAGENET, 5), "bias": torch.zeros(N_IMAGENET)}
    weight, bias = grouped(last)
    for k in range(N_OUTPUTS):
        rows = torch.from_numpy(class_of_index() == k)
        assert torch.allclose(weight[k], last["weight"][rows].mean(dim=0), atol=1e-6)
        assert float(bias[k]) == pytest.approx(0.5 * np.log(int(rows.sum())), abs=1e-5)


def test_features_without_a_last_layer_know_nothing_yet_and_say_so() -> None:
    state = {name: t for name, t in imagenet_state("mobilenetv2").items() if not name.startswith("classifier.")}
    model = Classifier(DetectorSpec(arch="mobilenetv2", input_px=32), state=state)
    assert torch.allclose(probabilities(model), torch.full((6, N_OUTPUTS), 1 / N_OUTPUTS))
    assert [len(found) for found in model.predict(some_crops(2), score_min=0.25)] == [0, 0]
    with pytest.raises(WeightsError, match="hold features only"):
        Classifier(DetectorSpec(arch="mobilenetv2", input_px=32), state=state, imagenet_head=True)


def flat_names(state: State) -> State:
    """MobileNetV2's tensors under the names of its first publication."""
    places = {"0.0": "0", "0.1": "1", "1.0": "3", "1.1": "4", "2": "6", "3": "7"}
    first = {"0.0": "0", "0.1": "1", "1": "3", "2": "4"}
    renamed = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if len(parts) > 3 and parts[2] == "conv":
            inner, leaf = ".".join(parts[3:-1]), parts[-1]
            name = f"features.{parts[1]}.conv.{(first if parts[1] == '1' else places)[inner]}.{leaf}"
        renamed[name] = tensor
    return renamed


def test_the_first_publications_names_are_understood() -> None:
    state = {name: t for name, t in imagenet_state("mobilenetv2").items() if name.startswith("features.")}
    trunk, last = from_published(flat_names(state), "mobilenetv2")
    assert last is None
    assert set(trunk) == set(state)
    assert all(torch.equal(trunk[name], state[name]) for name in state)
    assert arch_of(flat_names(state)) == "mobilenetv2"


def test_counters_that_old_files_lack_are_not_asked_for() -> None:
    state = {name: t for name, t in imagenet_state("resnet18").items() if not name.endswith("num_batches_tracked")}
    assert arch_of(state) == "resnet18"
    Classifier(DetectorSpec(arch="resnet18", input_px=32), state=state)


# --- what does not fit ------------------------------------------------------------------------------------------------


def test_weights_of_another_architecture_are_refused() -> None:
    with pytest.raises(WeightsError, match="do not fit resnet18: tensor"):
        Classifier(DetectorSpec(arch="resnet18", input_px=32), state=imagenet_state("shufflenetv2-0.5"))
    with pytest.raises(WeightsError, match=r"do not fit mobilenetv2-0\.5: tensor"):
        Classifier(DetectorSpec(arch="mobilenetv2-0.5", input_px=32), state=imagenet_state("mobilenetv2"))
    with pytest.raises(WeightsError, match="no classifier 'yolov8n'"):
        Classifier(DetectorSpec(arch="yolov8n", input_px=32))


def test_a_last_layer_with_classes_of_its_own_is_refused() -> None:
    state = imagenet_state("resnet18")
    state["fc.weight"], state["fc.bias"] = torch.zeros(12, 512), torch.zeros(12)
    with pytest.raises(WeightsError, match="12 classes of its own"):
        Classifier(DetectorSpec(arch="resnet18", input_px=32), state=state)


def test_a_detectors_weights_are_no_classifiers(tmp_path: Path) -> None:
    detector = new_detector(DetectorSpec(arch="tinydet-edge", input_px=256))
    assert arch_of(detector.state()) == ""
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(detector.state(), str(path))
    with pytest.raises(WeightsError, match="does not say which detector"):
        load_detector(str(path))


def test_a_model_is_for_one_task(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="resnet18 is a model for classification, not for detection") as caught:
        DETECTION.load("resnet18")
    assert "yolov8n" in caught.value.remedy
    with pytest.raises(UsageError, match="yolov8n is a model for detection, not for classification") as caught:
        CLASSIFICATION.load("yolov8n@320")
    assert "resnet18" in caught.value.remedy
    with pytest.raises(UsageError, match="not for detection"):
        DETECTION.load_golden("resnext101_32x8d")
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(Classifier(SPEC).state(), str(path), metadata={"arch": SPEC.arch})
    with pytest.raises(UsageError, match="not for detection"):
        DETECTION.load(str(path))
    assert CLASSIFICATION.load(str(path)).spec.arch == SPEC.arch
    assert CLASSIFICATION.load_golden("tinydet-golden").spec.arch == "tinydet-golden", "a detector may label regions"


def test_every_classifier_of_the_table_is_built_and_answers() -> None:
    names = [arch for arch, entry in ZOO.items() if entry.task == "classification"]
    assert set(names) == set(TRUNKS)
    assert all(is_classifier(name) for name in names)
    assert not is_classifier("yolov8n")
    assert not is_classifier("fake")
    for name in names:
        if name == "resnext101_32x8d":
            continue  # 340 MiB of random numbers
        [found] = new_detector(DetectorSpec(arch=name, input_px=32)).predict(some_crops(1), score_min=0.0)
        assert found.xyxy.tolist() == [[0, 0, 30, 20]]


def test_width_multipliers_make_smaller_networks() -> None:
    sizes = [
        sum(p.numel() for p in TRUNKS[name]()[0].parameters())
        for name in (
            "mobilenetv2-0.25",
            "mobilenetv2-0.35",
            "mobilenetv2-0.5",
            "mobilenetv2-0.75",
            "mobilenetv2",
            "mobilenetv2-1.4",
        )
    ]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 4 * sizes[0]
