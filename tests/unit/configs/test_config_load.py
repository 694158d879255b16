"""The loader: all problems at once, with path and line, without a secret, without touching the world."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.load import load_config, load_demo, parse_config
from configs.schema import BoxConfig, CameraEntry
from configs.schema.crosscheck import DEFAULTS
from configs.schema.planning import CACHED_RULES, POLICY_NAMES
from scheduler.ekya.cached import RULES
from scheduler.registry import FAMILIES, POLICIES, make_policy

ROOT = Path(__file__).parents[3]
CANARY = "c4n4ry-s3cret"

ALL_WRONG = f"""
box: {{id: No, sit: x}}
window: {{seconds: 5, label_frames: 4.5}}
scheduler: {{policy: theif-repeat, quantum_pct: 200}}
models: {{retrain: [{{name: a, epoch: 3}}, {{name: a}}]}}
cameras:
  - {{id: a, url: "rtsp://u:{CANARY}@h/x", fps: "fast", masks: [[[0,0],[1,1]]]}}
  - {{id: a, url: "ftp://u:{CANARY}@h/x"}}
  - {{id: b, url: "rtsp://u:{CANARY}/y@h/x", transport: tpc, fps: 1, fps: 2}}
  - {{id: 5, url: [{CANARY}]}}
telemetry: {{mqtt: {{password: [{CANARY}], passwrod: {CANARY}, port: yes, enabeld: true}}}}
fleet: {{networks: [Hall]}}
cammeras: 3
"""


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return dict(caught.value.problems)


def test_every_problem_is_reported_at_once_with_its_path() -> None:
    assert set(problems_of(ALL_WRONG)) == {
        "box.id",
        "box.sit",
        "window.seconds",
        "window.label_frames",
        "scheduler.policy",
        "scheduler.quantum_pct",
        "models.retrain[0].epoch",
        "cameras[0].fps",
        "cameras[0].masks",
        "cameras[1].id",
        "cameras[1].url",
        "cameras[2].fps",
        "cameras[2].transport",
        "cameras[2].url",
        "cameras[3].id",
        "cameras[3].url",
        "telemetry.mqtt.password",
        "telemetry.mqtt.passwrod",
        "telemetry.mqtt.port",
        "telemetry.mqtt.enabeld",
        "fleet.networks",
        "cammeras",
    }


def test_no_problem_shows_a_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(ALL_WRONG)
    assert CANARY not in f"{caught.value!r} {caught.value} {caught.value.problems}"


@pytest.mark.parametrize(
    ("text", "path", "parts"),
    [
        ("web: {prot: 1}", "web.prot", ("unknown key", "did you mean 'port'?", "hostnames, key_file, login, port, tls")),
        ("wbe: {}", "wbe", ("did you mean 'web'?", "telemetry")),
        ("web: {port: 0}", "web.port", ("1 to 65535", "not 0", "line 1")),
        ("window: {sample_fps: 0}", "window.sample_fps", ("above 0", "at most 30", "frames/s")),
        ("scheduler: {estimate: handback}", "scheduler.estimate", ("static, hand-back", "did you mean 'hand-back'?")),
        ("scheduler: {policy: theif}", "scheduler.policy", ("one of: thief-repeat", "did you mean 'thief'?")),
        ("scheduler: {policy: 'uniform(high,101)'}", "scheduler.policy", ("uniform(CONFIG,PCT)",)),
        ("fleet: {networks: [hall, hall]}", "fleet.networks", ("every network once",)),
        ("cameras: [{id: a}]", "cameras[0].url", ("is required",)),
        ("cameras: {id: a}", "cameras", ("must be a list",)),
        ("box: 5", "box", ("must be a section",)),
        ("box: {id: 12}", "box.id", ("put it in quotes", "not 12")),
        ("gpus: {capacity_pct: .nan}", "gpus.capacity_pct", ("whole number",)),
        ("window: {holdout_frac: .inf}", "window.holdout_frac", ("finite number",)),
        ("models: {retrain: []}", "models.retrain", ("at least one",)),
        ("models: {retrain: [{name: a}, {name: a}]}", "models.retrain", ("name a",)),
        ("window: {seconds: 60, first_seconds: 90}", "window", ("first_seconds",)),
        ("gpus: {capacity_pct: 40}", "window.prep_pct", ("gpus.capacity_pct (40 pct)",)),
        ("telemetry: {mqtt: {password: env:X}}", "telemetry.mqtt", ("needs a username",)),
        ("telemetry: {mqtt: {prefix: 'a/#'}}", "telemetry.mqtt.prefix", ("topic",)),
        ("cameras: [{id: Ä, url: a.mp4}]", "cameras[0].id", ("lower case",)),
        ("cameras: [{id: a, url: 'rtsp://${env:A B}@h'}]", "cameras[0].url", ("env:NAME",)),
        ("cameras: [{id: a, url: 'rtsp:///path'}]", "cameras[0].url", ("host is missing",)),
        ("cameras: [{id: a, url: 'rtsp://h/x', may_lag: true}]", "cameras[0].may_lag", ("only video files may lag",)),
        ("cameras: [{id: a, url: 'rendered:street', may_lag: true}]", "cameras[0].may_lag", ("only video files may lag",)),
        ("cameras: [{id: a, url: a.mp4, masks: [[[0,0],[1,1],[2,0]]]}]", "cameras[0].masks", ("outside 0 to 1",)),
    ],
)
def test_a_problem_says_what_is_allowed(text: str, path: str, parts: tuple[str, ...]) -> None:
    problems = problems_of(text)
    assert list(problems) == [path]
    for part in parts:
        assert part in problems[path]


def test_a_duplicate_id_is_found_although_other_things_are_wrong_too() -> None:
    problems = problems_of("cameras: [{id: a, url: x.mp4, fps: -1}, {id: a, url: y.mp4}, {id: a, url: z.mp4}]")
    assert "used by 3 cameras" in problems["cameras[1].id"]
    assert set(problems) == {"cameras[0].fps", "cameras[1].id", "cameras[2].id"}


def test_duplicates_are_refused_without_yaml_too() -> None:
    camera = {"id": "a", "url": "x.mp4"}
    with pytest.raises(ValueError, match="used by 2 cameras"):
        BoxConfig.model_validate({"cameras": [camera, camera]})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("box: {id: a\nweb: [", "line 2"),
        ("box:\n\tid: a", "line 2"),
        ("a: !python/object:os.system x", "line 1"),
        ("a: *b", "line 1"),
    ],
)
def test_a_syntax_error_names_its_line(text: str, where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        parse_config(text)


def test_a_text_without_sections_is_refused() -> None:
    with pytest.raises(ConfigError, match="sections"):
        parse_config("- just\n- a list")


def test_an_empty_file_is_a_box_without_cameras() -> None:
    assert parse_config("").cameras == ()


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml does not exist"):
        load_config(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"box: {id: \xe4}")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path / "latin.yaml")


def test_the_demo_and_the_example_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise AssertionError("validation must not dial out")

    monkeypatch.setattr(socket, "socket", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    demo, example = load_demo(), load_config(ROOT / "configs/example.yaml")
    assert len(demo.active_cameras) == 4
    assert all(camera.url.scheme == "rendered" for camera in demo.cameras)
    assert len(example.active_cameras) == 2


def test_the_first_window_is_short_unless_said_otherwise() -> None:
    assert parse_config("").window.first_seconds == 60
    assert parse_config("window: {seconds: 30}").window.first_seconds == 30
    assert parse_config("window: {seconds: 30, first_seconds: 20}").window.first_seconds == 20


def test_a_configuration_is_frozen() -> None:
    config = parse_config("")
    with pytest.raises(ValueError, match="frozen"):
        config.web.port = 1  # type: ignore[misc]


def test_a_camera_is_called_by_its_name_or_its_id() -> None:
    cameras = parse_config("cameras: [{id: a, url: x.mp4}, {id: b, url: x.mp4, name: Gate}]").cameras
    assert [camera.title for camera in cameras] == ["a", "Gate"]


def test_the_defaults_of_the_rules_across_sections_are_those_of_the_schema() -> None:
    config = BoxConfig()
    assert {key: getattr(getattr(config, key[0]), key[1]) for key in DEFAULTS} == DEFAULTS


def test_earlier_models_are_tried_unless_told_otherwise_and_cameras_share_a_retraining_only_when_told() -> None:
    usual = BoxConfig().scheduler.reuse
    assert (usual.enabled, usual.group) == (True, False)
    assert parse_config("scheduler: {reuse: {group: true}}").scheduler.reuse.group is True


def test_the_policies_are_those_of_the_registry() -> None:
    assert {*POLICIES, *FAMILIES} - {"cloud"} == set(POLICY_NAMES)
    assert set(CACHED_RULES) == set(RULES)
    for name in [*POLICY_NAMES, "uniform(high,50)", "uniform(full-long,100)", "cached(count)"]:
        assert parse_config(f"scheduler: {{policy: '{name}'}}").scheduler.policy == name
        assert make_policy(name)


def test_a_live_box_sends_no_video_to_a_cloud() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("scheduler: {policy: cloud}")
    assert "no video leaves" in dict(caught.value.problems)["scheduler.policy"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_a_configuration_or_a_config_error(text: str) -> None:
    assert isinstance(outcome_of(text), BoxConfig | ConfigError)


def outcome_of(text: str) -> BoxConfig | ConfigError:
    try:
        return parse_config(text)
    except ConfigError as error:
        return error


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*BoxConfig.model_fields, "x"]), _VALUES), st.lists(_VALUES, max_size=3))
def test_any_data_gives_a_configuration_or_named_problems(data: dict[str, object], cameras: list[object]) -> None:
    text = yaml.safe_dump(data | {"cameras": cameras}, allow_unicode=True)
    outcome = outcome_of(text)
    assert isinstance(outcome, BoxConfig) or outcome.problems


def test_every_field_says_what_it_is() -> None:
    def undescribed(model: type) -> list[str]:
        return [name for name, field in model.model_fields.items() if not (field.description or "").endswith(".")]  # type: ignore[attr-defined]

    sections = [field.annotation for field in BoxConfig.model_fields.values() if hasattr(field.annotation, "model_fields")]
    assert not [undescribed(section) for section in [BoxConfig, CameraEntry, *sections] if undescribed(section)]


def test_the_demo_names_the_cameras_that_the_renderer_drifts() -> None:
    from streams.rendered.serve import DEMO_CAMERAS

    assert [(c.id, str(c.url)) for c in load_demo().cameras] == [(s.id, f"rendered:{s.kind}") for s in DEMO_CAMERAS]


@pytest.mark.parametrize(
    ("text", "section", "key", "value"),
    [
        ("web: {tls: off}", "web", "tls", "off"),
        ("scheduler: {slaq: off}", "scheduler", "slaq", "off"),
        ("scheduler: {reprofile: off}", "scheduler", "reprofile", "off"),
    ],
)
def test_off_is_a_word_where_it_is_a_value(text: str, section: str, key: str, value: str) -> None:
    """YAML reads it as false."""
    assert getattr(getattr(parse_config(text), section), key) == value


def test_off_is_a_boolean_where_it_is_one_and_on_is_no_word_where_it_is_none() -> None:
    assert parse_config("web: {login: off}").web.login is False
    with pytest.raises(ConfigError) as caught:
        parse_config("web: {tls: on}")
    assert "must be one of" in str(caught.value.problems)
