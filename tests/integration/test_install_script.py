"""`make install` and `make uninstall` below a scratch root: files, modes, the unit as systemd reads it, upgrades, what stays.

Users and services are only printed there. The container files are read and compared with the tree; nothing is built.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from configs.load import load_config

ROOT = Path(__file__).parents[2]
PREFIX = "/opt/driftbox"


def service(word: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(ROOT / "scripts" / "service.sh"), word],
        env=os.environ | {"DESTDIR": str(root), "SKIP_ENV": "1"} | environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root in which the environment stands already."""
    program = tmp_path / "root" / PREFIX.lstrip("/") / "venv" / "bin" / "driftbox"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path / "root"


def test_a_first_install_writes_all_that_is_needed_and_nothing_must_be_edited(root: Path) -> None:
    done = service("install", root)
    assert done.returncode == 0, done.stderr
    config = load_config(root / "etc/driftbox/box.yaml")
    assert str(config.box.data_dir) == "/var/lib/driftbox"
    assert config.web.is_open
    assert config.web.login
    assert config.web.tls_kind == "own"
    modes = {
        path: stat.S_IMODE((root / path).stat().st_mode)
        for path in ("etc/driftbox", "etc/driftbox/box.yaml", "var/lib/driftbox")
    }
    assert modes == {"etc/driftbox": 0o750, "etc/driftbox/box.yaml": 0o640, "var/lib/driftbox": 0o750}
    assert os.readlink(root / "usr/local/bin/driftbox") == f"{PREFIX}/venv/bin/driftbox"
    assert "SystemMaxUse" in (root / "etc/systemd/journald@driftbox.conf").read_text()
    assert "would run: systemctl enable --now driftbox" in done.stdout
    assert "would run: useradd --system" in done.stdout
    assert "@PREFIX@" not in (root / "etc/systemd/system/driftbox.service").read_text()


def test_nothing_is_done_to_this_system(root: Path) -> None:
    users = Path("/etc/passwd").read_text()
    service("install", root)
    assert Path("/etc/passwd").read_text() == users
    assert not Path("/etc/systemd/system/driftbox.service").exists()


def test_an_upgrade_keeps_the_configuration_and_backs_up_first(root: Path) -> None:
    service("install", root)
    config = root / "etc/driftbox/box.yaml"
    config.write_text(config.read_text() + "storage: {max_gib: 5}\n")
    (root / "var/lib/driftbox/driftbox.db").write_bytes(b"a database")
    done = service("install", root)
    assert done.returncode == 0, done.stderr
    assert "max_gib: 5" in config.read_text()
    lines = done.stdout.splitlines()
    order = [
        next(n for n, line in enumerate(lines) if words in line)
        for words in ("backup make", "kept /etc", "upgrade /etc", "enable --now")
    ]
    assert order == sorted(order)


# --- the environment: beside the one in use, whole or not at all ------------------------------------------------------


#: Stands in for Python, venv and pip: writes down what pip is asked, with its folder for what is half done, and fails when told so.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
    *"-m venv"*) for last in "$@"; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python"
        printf '#!/bin/sh\\n' > "$last/bin/driftbox"; chmod 755 "$last/bin/driftbox" ;;
    *"-m pip install"*) for last in "$@"; do :; done; [ -z "${PIP_FAILS:-}" ] || exit 1
        printf '%s %s\\n' "$TMPDIR" "$(cd "$last" && find . -type f | sort | tr '\\n' ' ')" >> "$PIP_LOG" ;;
    *"-m pip show"*) exit 1 ;;
    *"%d.%d"*) echo 3.11 ;;
esac
"""


OLDER = "env-20200202-000000"


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    python = tmp_path / "fake-python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return python


def environments(root: Path) -> tuple[str, list[str]]:
    """The one in use, and all that are there."""
    folder = root / PREFIX.lstrip("/")
    return os.readlink(folder / "venv"), sorted(path.name for path in folder.glob("env-*"))


def make_it_older(root: Path) -> None:
    """Environments are called by their second; a test waits for none."""
    folder = root / PREFIX.lstrip("/")
    (folder / os.readlink(folder / "venv")).rename(folder / OLDER)
    (folder / "venv").unlink()
    (folder / "venv").symlink_to(OLDER)


def with_environment(root: Path, python: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return service("install", root, SKIP_ENV="", PYTHON=str(python), PIP_LOG=str(root.parent / "pip.log"), **more)


def test_an_upgrade_makes_its_environment_beside_the_one_in_use_and_then_takes_its_place(root: Path, fake_python: Path) -> None:
    (root / "opt/driftbox/venv/old").touch()  # as installs before this rule left it: a folder, no link
    first = with_environment(root, fake_python)
    assert first.returncode == 0, first.stderr
    in_use, there = environments(root)
    assert there == [in_use]
    assert not (root / "opt/driftbox/venv/old").exists()
    (root / "opt/driftbox/env-20200101-000000").mkdir()  # of an install that was killed
    make_it_older(root)
    second = with_environment(root, fake_python)
    assert second.returncode == 0, second.stderr
    in_use, there = environments(root)
    assert there == [in_use]
    assert in_use > OLDER


def test_what_has_not_changed_takes_no_room_twice_and_scripts_name_their_own_python(root: Path, fake_python: Path) -> None:
    assert with_environment(root, fake_python).returncode == 0
    make_it_older(root)
    older = root / PREFIX.lstrip("/") / OLDER
    (older / "lib").mkdir()
    (older / "lib/torch.so").write_bytes(b"gigabytes")
    (older / "bin/tool").write_text(f"#!{root}{PREFIX}/{OLDER}/bin/python\nimport tool\n")
    inode = (older / "lib/torch.so").stat().st_ino
    assert with_environment(root, fake_python).returncode == 0
    in_use, there = environments(root)
    assert there == [in_use] != [OLDER]
    now = root / PREFIX.lstrip("/") / in_use
    assert (now / "lib/torch.so").stat().st_ino == inode
    assert (now / "bin/tool").read_text() == f"#!{root}{PREFIX}/{in_use}/bin/python\nimport tool\n"


def test_an_install_whose_download_fails_changes_nothing_and_leaves_nothing(root: Path, fake_python: Path) -> None:
    assert with_environment(root, fake_python).returncode == 0
    (root / "var/lib/driftbox/driftbox.db").write_bytes(b"a database")
    make_it_older(root)
    done = with_environment(root, fake_python, PIP_FAILS="1")
    assert done.returncode != 0
    assert "docs/install.md" in done.stderr
    assert environments(root) == (OLDER, [OLDER])
    assert "systemctl" not in done.stdout, "the box must not be touched"


def test_what_is_half_done_lies_in_the_environment_and_a_copy_of_the_tree_is_built(root: Path, fake_python: Path) -> None:
    """/tmp may be a part of the memory; and a build leaves its own things in the folder that it works in."""
    assert with_environment(root, fake_python).returncode == 0
    in_use, _ = environments(root)
    scratch, *files = (root.parent / "pip.log").read_text().split()
    assert scratch == f"{root}{PREFIX}/{in_use}/scratch"
    assert not Path(scratch).exists()
    assert {"./pyproject.toml", "./edge/cli.py", "./configs/service/driftbox.service"} <= set(files)
    assert [file for file in files if ".git/" in file or file.startswith(("./tests", "./build", "./docs"))] == []


def test_data_that_the_new_version_refuses_leave_the_old_one_in_place(root: Path, fake_python: Path) -> None:
    assert with_environment(root, fake_python).returncode == 0
    make_it_older(root)
    (root / "var/lib/driftbox/driftbox.db").write_bytes(b"a database")
    unit = root / "etc/systemd/system/driftbox.service"
    unit.write_text("as it was")
    script = root.parent / "scripts" / "service.sh"
    script.parent.mkdir()
    # What would be run is only printed here; so the printing of this one step is made to fail.
    text = (ROOT / "scripts" / "service.sh").read_text()
    shutil.copy(ROOT / "scripts" / "install_env.sh", script.parent)
    script.write_text(text.replace('venv/bin/driftbox" upgrade "$config"', 'venv/bin/driftbox" upgrade "$config" && false'))
    assert script.read_text() != text
    for part in ("pyproject.toml", "README.md", "LICENSE", "cluster", "configs", "edge", "models", "scheduler", "streams"):
        (root.parent / part).symlink_to(ROOT / part)
    done = subprocess.run(
        ["sh", str(script), "install"],
        env=os.environ | {"DESTDIR": str(root), "PYTHON": str(fake_python), "PIP_LOG": str(root.parent / "pip.log")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "the one before stays" in done.stderr
    assert environments(root) == (OLDER, [OLDER])
    assert unit.read_text() == "as it was"
    assert "enable --now" not in done.stdout


def test_uninstalling_takes_the_environments_along(root: Path, fake_python: Path) -> None:
    assert with_environment(root, fake_python).returncode == 0
    assert service("uninstall", root).returncode == 0
    assert not (root / "opt/driftbox").exists()


def test_uninstalling_leaves_the_data_unless_told_otherwise(root: Path) -> None:
    service("install", root)
    (root / "var/lib/driftbox/driftbox.db").write_bytes(b"a database")
    done = service("uninstall", root)
    assert done.returncode == 0, done.stderr
    assert not (root / "etc/systemd/system/driftbox.service").exists()
    assert not (root / "opt/driftbox").exists()
    assert (root / "var/lib/driftbox/driftbox.db").exists()
    assert (root / "etc/driftbox/box.yaml").exists()
    assert "PURGE=1" in done.stdout
    assert "would run: systemctl stop systemd-journald@driftbox.socket" in done.stdout, "the journal's own service ends, too"
    journals = [root / "var/log/journal" / name for name in ("0123.driftbox", "0123")]
    for journal in journals:
        journal.mkdir(parents=True)
    assert service("uninstall", root, PURGE="1").returncode == 0
    assert not (root / "var/lib/driftbox").exists()
    assert not (root / "etc/driftbox").exists()
    assert [journal.exists() for journal in journals] == [False, True]


def test_uninstalling_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert service("uninstall", tmp_path / "empty").returncode == 0


@pytest.mark.parametrize("word", ["", "remove", "install now"])
def test_another_word_is_refused(root: Path, word: str) -> None:
    done = service(word, root)
    assert done.returncode == 2
    assert "install or uninstall" in done.stderr


def test_without_root_it_says_what_to_type(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, to give it up")
    script = tmp_path / "scripts" / "service.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / "service.sh", script)
    for folder in (tmp_path, script.parent, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", str(script), "install"],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 3
    assert "sudo make install" in done.stderr


def test_systemd_understands_the_unit(root: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    service("install", root)
    unit = tmp_path / "driftbox.service"
    unit.write_text((root / "etc/systemd/system/driftbox.service").read_text().replace(PREFIX, f"{root}{PREFIX}"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in done.stderr.splitlines() if "driftbox" in line]
    assert (done.returncode, ours) == (0, []), done.stderr
    look = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    secure = subprocess.run(look, capture_output=True, text=True, timeout=60, check=False)
    score = re.search(r"exposure level for driftbox.service: ([\d.]+)", secure.stdout)
    assert score is not None, secure.stdout + secure.stderr
    assert float(score.group(1)) < 3.0


def test_the_unit_and_the_program_agree(root: Path) -> None:
    text = (ROOT / "configs/service/driftbox.service").read_text()
    assert "Type=notify" in text
    assert re.search(r"WatchdogSec=(\d+)", text)[1] == "90"  # type: ignore[index]
    from edge.closing import THREADS_S
    from edge.watchdog.live import LOOP_SILENT_S

    assert LOOP_SILENT_S < 90, "silence must be noticed before systemd loses patience"
    assert int(re.search(r"TimeoutStopSec=(\d+)", text)[1]) > THREADS_S + 5  # type: ignore[index]


# --- containers: read, not built (docs/install.md tells of a real build) -----------------------------------------------


CONTAINERFILE = (ROOT / "configs/container/Containerfile").read_text()


def test_everything_that_the_container_copies_is_there_and_the_package_is_whole() -> None:
    copied = set()
    for line in CONTAINERFILE.splitlines():
        words = [word for word in line.split() if not word.startswith("--")]
        if words[:1] == ["COPY"] and "--from" not in line:
            copied |= set(words[1:-1])
    assert [path for path in sorted(copied) if not (ROOT / path).exists()] == []
    assert {"cluster", "configs", "edge", "models", "scheduler", "streams", "scripts", "pyproject.toml"} <= copied


def test_a_later_image_can_read_what_an_earlier_one_left_in_its_volumes() -> None:
    """Numbers that a base image hands out change with what else it holds; files in volumes keep theirs."""
    assert re.search(r"groupadd --gid (\d+) driftbox", CONTAINERFILE)[1] == "10001"  # type: ignore[index]
    assert re.search(r"useradd --uid (\d+) --gid driftbox", CONTAINERFILE)[1] == "10001"  # type: ignore[index]


def test_podman_is_told_to_keep_the_health_check() -> None:
    """Its own format of images knows none, and leaves it out with a warning."""
    builds = [line for line in (CONTAINERFILE + (ROOT / "docs/install.md").read_text()).splitlines() if "podman build" in line]
    assert builds
    assert [line for line in builds if "--format docker" not in line] == []


def test_nothing_but_what_is_copied_reaches_a_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert "*" in ignored
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    words = [line.split()[1:-1] for line in CONTAINERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line]
    needed = {word.split("/")[0] for line in words for word in line if not word.startswith("--")}
    assert kept == needed


def test_containers_run_as_nobody_special_and_end_politely() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)", CONTAINERFILE, re.MULTILINE)
    assert stages == ["build", "cpu", "gpu"]
    assert "USER driftbox" in CONTAINERFILE
    assert "HEALTHCHECK" in CONTAINERFILE
    assert 'ENTRYPOINT ["driftbox"]' in CONTAINERFILE
    assert "STOPSIGNAL SIGTERM" in CONTAINERFILE
    compose = yaml.safe_load((ROOT / "configs/container/compose.yaml").read_text())
    for box in compose["services"].values():
        assert box["read_only"]
        assert box["cap_drop"] == ["ALL"]
        assert box["build"]["target"] in stages
        assert (ROOT / box["build"]["dockerfile"]).is_file()
        assert {volume.split(":")[0] for volume in box["volumes"]} == set(compose["volumes"])
