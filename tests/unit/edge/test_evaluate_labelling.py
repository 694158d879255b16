"""An evaluation makes labels as the box does: class map, second look, frames left out; and charges what that costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from configs.units import CLASSES
from edge import jobs
from edge.evaluate.studio import FromMemo, Studio, StudioSamples
from edge.evaluate.world import EvaluateWorld
from models.golden import PLAIN, Labelling, class_table
from scheduler.commands import StartLabelling
from tests.support.evaluation import COSTS, OPTIONS, scripted_studio, scripted_videos

FLIP = Labelling(agreement="flip")


def studio_with(folder: Path, labelling: Labelling) -> Studio:
    return scripted_studio(scripted_videos(folder, count=1), options=replace(OPTIONS, labelling=labelling))


def labelled(studio: Studio) -> StudioSamples:
    samples = StudioSamples(studio)
    samples.set_time(200.0)
    golden = FromMemo(studio, "cam0")
    todo = [(c, "train") for c in samples.sampled("cam0", 0)]
    options = studio.options
    jobs.run_at_once(
        jobs.golden_label_steps(samples, golden, todo, scoring=options.scoring, labelling=options.labelling)  # type: ignore[arg-type]
    )
    return samples


def test_a_second_look_is_really_made_and_remembered(tmp_path: Path) -> None:
    studio = studio_with(tmp_path, FLIP)
    samples = labelled(studio)
    asked, pictures = studio.done.golden, samples.labelled("cam0", [0], "train")
    assert len(pictures) > 3
    assert asked == 2 * len({image.image.tobytes() for image in pictures}), "each picture and its mirror image"
    assert all(len(image.labels) > 0 for image in pictures), "the scripted model agrees with itself"
    labelled(studio)
    assert studio.done.golden == asked, "and nothing is asked twice"


def test_the_class_map_is_what_is_learned_and_part_of_the_key(tmp_path: Path) -> None:
    cars = class_table({name: "car" for name in CLASSES if name != "car"})
    videos = tmp_path / "v"
    videos.mkdir()
    plain, mapped = labelled(studio_with(videos, PLAIN)), labelled(studio_with(videos, Labelling(classes=cars)))
    assert {int(k) for image in mapped.labelled("cam0", [0], "train") for k in image.labels.class_id} == {CLASSES.index("car")}
    assert plain.key("cam0", [0], "train") != mapped.key("cam0", [0], "train"), "kept trainings are not mixed up"


@pytest.mark.parametrize(("labelling", "looks"), [(PLAIN, 1), (FLIP, 2)])
def test_labels_cost_what_their_looks_cost(tmp_path: Path, labelling: Labelling, looks: int) -> None:
    studio = studio_with(tmp_path, labelling)
    world = EvaluateWorld(studio, {"cam0": studio.knobs("cam0")})
    command = StartLabelling(
        job="cam0/label/0", stream="cam0", window=0, frames=10, holdout_frac=0.4, version=studio.base_version
    )
    work = world.start(command, 200.0)
    assert work.gpu_s == pytest.approx(10 * looks * COSTS["golden_gpu_s"] + 4 * COSTS["infer_gpu_s"])
    done = work.finish(210.0)
    assert done.golden_gpu_s == pytest.approx(looks * COSTS["golden_gpu_s"])  # type: ignore[attr-defined]
