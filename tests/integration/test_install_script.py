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
    assert service("uninstall", root, PURGE="1").returncode == 0
    assert not (root / "var/lib/driftbox").exists()
    assert not (root / "etc/driftbox").exists()


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


# --- containers: read, not built --------------------------------------------------------------------------------------


CONTAINERFILE = (ROOT / "configs/container/Containerfile").read_text()


def test_everything_that_the_container_copies_is_there_and_the_package_is_whole() -> None:
    copied = set()
    for line in CONTAINERFILE.splitlines():
        words = [word for word in line.split() if not word.startswith("--")]
        if words[:1] == ["COPY"] and "--from" not in line:
            copied |= set(words[1:-1])
    assert [path for path in sorted(copied) if not (ROOT / path).exists()] == []
    assert {"cluster", "configs", "edge", "models", "scheduler", "streams", "scripts", "pyproject.toml"} <= copied


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
