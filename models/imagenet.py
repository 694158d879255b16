"""ImageNet's 1000 classes and ours: what a network trained on ImageNet says in the box's words.

The mapping is by index (ILSVRC 2012 order, as in every published weights file). ImageNet has no class for a person: what people wear
and carry stands for them. Everything that no group names is `configs.units.NOTHING`.
"""

from __future__ import annotations

import numpy as np

from configs.units import CLASSES, NOTHING

N_IMAGENET = 1000

#: Class name -> ImageNet indices that mean it. A pickup is a truck and a horse cart an animal, as COCO's annotators have it.
GROUPS: dict[str, tuple[int, ...]] = {
    # gowns, coats, uniforms, sportswear, hats and bags worn, ballplayer, groom, diver
    "person": (
        399, 400, 414, 439, 445, 452, 457, 459, 465, 474, 490, 501, 515, 523, 524, 560, 568, 578, 601, 608, 610, 614, 617, 638, 639,
        652, 655, 667, 689, 697, 715, 735, 748, 770, 775, 796, 808, 824, 834, 836, 837, 841, 842, 869, 879, 887, 906, 981, 982, 983,
    ),
    "bicycle": (444, 671, 870, 880),
    "car": (436, 468, 475, 479, 511, 609, 627, 656, 661, 705, 734, 751, 817),
    "motorcycle": (518, 665, 670),
    "bus": (654, 779, 829, 874),
    "truck": (407, 555, 569, 675, 717, 757, 803, 864, 867),
    # birds, dogs and other canines, cats, bears, horses and zebra, cattle and sheep, elephants
    "animal": (*range(7, 25), *range(80, 101), *range(127, 147), *range(151, 298), 339, 340, *range(345, 354), 385, 386, 603, 690),
}  # fmt: skip


def class_of_index() -> np.ndarray:
    """int64 (1000,): ImageNet index -> index in CLASSES, NOTHING for the rest."""
    table = np.full(N_IMAGENET, NOTHING, np.int64)
    for name, indices in GROUPS.items():
        table[list(indices)] = CLASSES.index(name)
    return table
