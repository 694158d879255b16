"""A classifier of crops behind the detectors' seam (`models.detector.Detector`): a picture is one crop, its one box is the whole crop.

ImageNet features with a head of ours: the box's classes and `configs.units.NOTHING`. `models.tasks.classification` cuts the crops and
puts the answers back where they came from. The head may have an added layer (Ekya's retraining knob `head_neurons`, papers/ekya.md
section 5); since no activation stands between its two linear layers, any head becomes any other without losing what it has learnt
(`with_head`), as long as the layer is at least as wide as the outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from configs.errors import JobError, UsageError, WeightsError
from configs.units import NOTHING
from models.classifier_nets import (
    N_OUTPUTS,
    TRUNKS,
    ClassifierNet,
    Head,
    ImageNetHead,
    State,
    from_published,
    grouped,
    trunk_layers,
)
from models.crops import squared
from models.detector import Detector, DetectorSpec, ServedBody, YieldPoint
from models.kept_features import KeptFeatures
from models.pixels import FromPixels, Levels
from models.torch_support import (
    check_images,
    check_teacher,
    cpu_state,
    load_checked_state,
    placed,
    to_tensor,
    train_with_frozen_batch_norm,
)
from models.yielding import yielding_between_layers
from scheduler.types import Detections, RetrainConfig

#: Crops that go through the network together.
BATCH = 16
#: Softens both answers when one model learns from another (Hinton et al. 2015, "Distilling the Knowledge in a Neural Network").
DISTILL_TEMPERATURE = 2.0
#: Directions of a head weaker than this carry nothing; a neuron spent on one would be dead at both ends and never learn.
_LEAST_SINGULAR = 1e-9
#: Length of a new neuron's weights. Torch's own start (0.6) is so small on averaged features that a head which knows nothing learns too
#: slowly: 5 epochs at 3e-3 on six real videos came to an accuracy of 0.72, with 4.0 to 0.83, as without an added layer.
_ADDED_GAIN = 4.0


class Classifier:
    """input_px: side of the square that a crop is scaled into."""

    def __init__(
        self, spec: DetectorSpec, *, state: State | None = None, device: str = "cpu", seed: int = 0, imagenet_head: bool = False
    ) -> None:
        """state: tensors as `state` gave them, or a published ImageNet file's; None: random weights from `seed`.
        imagenet_head: keep ImageNet's own last layer and sum its classes to ours (a golden model) instead of a head that learns.
        Raises WeightsError for an unknown arch or a state that does not fit."""
        if spec.arch not in TRUNKS:
            raise WeightsError(f"there is no classifier {spec.arch!r}", subject=spec.arch, remedy=f"known: {', '.join(TRUNKS)}")
        self.spec = spec
        self._device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            trunk, width = TRUNKS[spec.arch]()
            self._width = width
            if state is not None:
                state, neurons, imagenet_head = _own_state(state, spec.arch, imagenet_head)
            else:
                neurons = 0
            head = ImageNetHead(width) if imagenet_head else Head(width, neurons)
            self._model = ClassifierNet(trunk, head)
        if state is not None:
            load_checked_state(self._model, _with_counters(self._model, state), subject=spec.arch)
        placed(self._model, self._device)
        self._model.eval()

    # --- inference ----------------------------------------------------------------------------------------------------

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """One answer per crop, which may be NOTHING; none where the best class scores under `score_min`."""
        check_images(images)
        if not images:
            return []
        probabilities = self._run(images, self._model, yield_point).softmax(dim=1).numpy()
        return [_answer(p, image.shape[:2], score_min) for p, image in zip(probabilities, images, strict=True)]

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        check_images(images)
        return self._run(images, _Features(self._model), None).numpy()

    def _run(self, images: Sequence[np.ndarray], network: nn.Module, yield_point: YieldPoint | None) -> torch.Tensor:
        """The network on each crop, float32 (N, ...) on the CPU, in batches."""
        (network if self._model.kept is None else self._model.head).eval()
        outputs = []
        with torch.inference_mode(), yielding_between_layers(network, yield_point):
            for i in range(0, len(images), BATCH):
                outputs.append(network(self._input(images[i : i + BATCH])).float().cpu())
        return torch.cat(outputs) if outputs else torch.zeros(0, self._width)

    def _input(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        return to_tensor([squared(image, self.spec.input_px) for image in images], self._device)

    def body(self) -> ServedBody:
        size = self.spec.input_px

        def encode(image: np.ndarray) -> tuple[np.ndarray, object]:
            check_images([image])
            return squared(image, size)[None], image.shape[:2]

        def decode(outputs: Sequence[np.ndarray], context: object, score_min: float) -> Detections:
            assert isinstance(context, tuple)
            return _answer(_softmax(outputs[0][0]), context, score_min)

        network = FromPixels(_Tupled(copy.deepcopy(self._model).cpu()), Levels())
        return ServedBody(network=network.eval(), encode=encode, decode=decode, example_px=(size, size), pixels=True)

    # --- training -----------------------------------------------------------------------------------------------------

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        """Cross entropy, mean per crop. A crop's class is that of its first box; without a box it shows NOTHING.
        Raises JobError for a class that the box does not know."""
        if not images:
            raise ValueError("a training loss needs at least one image")
        wanted = torch.tensor([_class_of(target) for target in targets], device=self._device)
        return functional.cross_entropy(self._trained_logits(images), wanted)

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        """Kullback-Leibler divergence of our softened answer from the teacher's (Hinton et al. 2015), mean per crop."""
        other = check_teacher(self, teacher)
        ours = self._trained_logits(images) / DISTILL_TEMPERATURE
        theirs = other._run(images, other._model, None).to(self._device) / DISTILL_TEMPERATURE
        divergence = functional.kl_div(ours.log_softmax(1), theirs.log_softmax(1), log_target=True, reduction="batchmean")
        return divergence * DISTILL_TEMPERATURE**2

    def _trained_logits(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        check_images(images)
        # a kept trunk stays as it is: setting the mode of all its layers costs as much as a head's whole step
        train_with_frozen_batch_norm(self._model if self._model.kept is None else self._model.head)
        return self._model(self._input(images))

    def trainable_layers(self) -> list[nn.Module]:
        """The trunk block by block, then the head: the added layer and the output are one, as Ekya's "last layer" is."""
        return [*trunk_layers(self._model.trunk), self._model.head]

    @property
    def head_neurons(self) -> int:
        """Width of the added layer, 0 without one."""
        head = self._model.head
        return head.added.out_features if isinstance(head, Head) and head.added is not None else 0

    def with_head(self, neurons: int, *, seed: int = 0) -> Classifier:
        """A copy whose head has an added layer of that width (0: none). The present head's function is kept: exactly for `neurons`
        of 0 or at least N_OUTPUTS, else as nearly as so narrow a layer can. The same width keeps the same weights.
        An ImageNet head becomes the mean of each group's rows."""
        twin = self.clone()
        if not isinstance(twin._model.head, ImageNetHead) and neurons == self.head_neurons:
            return twin
        weight, bias = _as_one_layer(twin._model.head)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            head = Head(weight.shape[1], neurons)
            _write_head(head, weight.cpu(), bias.cpu())
        twin._model.head = head.to(self._device)
        return twin

    def keeping(self, kept: KeptFeatures) -> Classifier:
        """The same model, weights shared, whose trunk's answers come out of `kept` where it has them. Only for a model whose trunk is,
        and stays, the one that `kept` was filled from. Clones do not keep."""
        twin = copy.copy(self)
        twin._model = copy.copy(self._model).eval()
        twin._model.kept = kept
        return twin

    # --- weights ------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        return cpu_state(self._model)

    def load_state(self, state: State) -> None:
        load_checked_state(self._model, state, subject=self.spec.arch)

    def clone(self) -> Classifier:
        twin = copy.copy(self)
        twin._model = copy.deepcopy(self._model)
        twin._model.zero_grad(set_to_none=True)
        return twin


def adapted(model: Detector, config: RetrainConfig, *, seed: int = 0) -> Detector:
    """The model a retraining with `config` starts from: its head as `config.head_neurons` says. What the head has learnt is kept (see
    `Classifier.with_head`); a model that has the right head already, or no such head, is returned itself.
    Raises UsageError when a detector is asked for an added layer."""
    if isinstance(model, Classifier):
        return model if model.head_neurons == config.head_neurons else model.with_head(config.head_neurons, seed=seed)
    if config.head_neurons:
        raise UsageError(
            f"{model.spec.arch} cannot have an added layer of {config.head_neurons} neurons: only classifiers have one",
            subject=config.name,
            remedy="set head_neurons to 0 in this retraining configuration",
        )
    return model


# --- parts ------------------------------------------------------------------------------------------------------------


class _Features(nn.Module):
    def __init__(self, model: ClassifierNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model.features(x)


class _Tupled(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.model(x),)


def _answer(probabilities: np.ndarray, size: tuple[int, ...], score_min: float) -> Detections:
    """size: (height, width) px of the crop."""
    best = int(np.argmax(probabilities))
    height, width = size
    found = Detections(
        xyxy=np.array([[0, 0, width, height]], np.float32),
        score=probabilities[best : best + 1].astype(np.float32),
        class_id=np.array([best], np.int64),
    )
    return found.above(score_min)


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def _class_of(target: Detections) -> int:
    class_id = int(target.class_id[0]) if len(target) else NOTHING
    if not 0 <= class_id < N_OUTPUTS:
        raise JobError(
            f"a label has class {class_id}, which the box does not know",
            subject=str(class_id),
            remedy=f"classes are 0 to {NOTHING - 1}, and {NOTHING} for nothing",
        )
    return class_id


def _own_state(state: State, arch: str, imagenet_head: bool) -> tuple[State, int, bool]:
    """(state under our names, neurons of its added layer, whether its head is ImageNet's)."""
    if any(name.startswith("trunk.") for name in state):
        added = state.get("head.added.weight")
        return state, 0 if added is None else added.shape[0], "head.fc.weight" in state
    trunk, last = from_published(state, arch)
    own = {f"trunk.{name}": tensor for name, tensor in trunk.items()}
    if imagenet_head:
        if last is None:
            raise WeightsError(
                f"weights of {arch} hold features only, without ImageNet's last layer",
                subject=arch,
                remedy="use weights with it, or the model as an edge model",
            )
        return own | {f"head.fc.{kind}": tensor for kind, tensor in last.items()}, 0, True
    if last is None:
        return own | _blank_head(arch), 0, False
    weight, bias = grouped(last)
    return own | {"head.out.weight": weight, "head.out.bias": bias}, 0, False


def _blank_head(arch: str) -> State:
    """A head that says that it knows nothing (every class alike) instead of something by chance."""
    with torch.device("meta"):
        width = TRUNKS[arch]()[1]
    return {"head.out.weight": torch.zeros(N_OUTPUTS, width), "head.out.bias": torch.zeros(N_OUTPUTS)}


def _with_counters(model: nn.Module, state: State) -> State:
    """Old files lack batch norm's counters, which nothing here uses."""
    counters = {name: t for name, t in model.state_dict().items() if name.endswith("num_batches_tracked")}
    return counters | state


def _as_one_layer(head: Head | ImageNetHead) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight (N_OUTPUTS, D), bias) of the one linear layer that does what the head does."""
    if isinstance(head, ImageNetHead):
        return grouped({"weight": head.fc.weight.detach(), "bias": head.fc.bias.detach()})
    weight, bias = head.out.weight.detach(), head.out.bias.detach()
    if head.added is None:
        return weight, bias
    return weight @ head.added.weight.detach(), weight @ head.added.bias.detach() + bias


def _write_head(head: Head, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Makes `head` do weight @ x + bias: the added layer's first neurons carry its principal directions (singular value
    decomposition), the others look in random ones and are not listened to yet."""
    out, added = head.out, head.added
    with torch.no_grad():
        out.bias.copy_(bias)
        if added is None:
            out.weight.copy_(weight)
            return
        u, s, vt = torch.linalg.svd(weight.double(), full_matrices=False)
        carried = min(added.out_features, int((s > _LEAST_SINGULAR).sum()))
        root = s[:carried].sqrt()
        added.bias.zero_()
        nn.init.orthogonal_(added.weight, gain=_ADDED_GAIN)
        added.weight[:carried] = (root[:, None] * vt[:carried]).to(added.weight.dtype)
        out.weight.zero_()
        out.weight[:, :carried] = (u[:, :carried] * root).to(out.weight.dtype)
