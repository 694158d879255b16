#!/bin/sh
# Makes the environment: sh scripts/install_env.sh VENV_FOLDER. Called by `make` when pyproject.toml has changed, and by
# scripts/service.sh, which names what is installed (DRIFTBOX_SPEC: the source tree, without what development needs).
set -eu
venv="$1"
python="${PYTHON:-python3}"

if ! command -v "$python" >/dev/null 2>&1; then
    echo "driftbox needs Python 3.11 or newer. Type:  sudo apt-get install -y python3 python3-venv" >&2
    exit 3
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "driftbox needs Python 3.11 or newer; $("$python" --version 2>&1) is too old." >&2
    echo "Install a newer one and name it:  make PYTHON=python3.12 run" >&2
    exit 3
fi
minor="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    echo "Python's venv module is missing. Type:  sudo apt-get install -y python$minor-venv" >&2
    exit 3
fi

if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
    echo "making the environment in $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

echo "installing Driftbox and its libraries (about two minutes, once)"
if [ -n "${DRIFTBOX_SPEC:-}" ]; then
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --upgrade "$DRIFTBOX_SPEC"
else
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet -e '.[dev,cluster]'
fi

# ultralytics asks for opencv-python, which needs libGL and others that bare systems lack; both packages own the same files,
# so the plain one is removed and the headless one put back whole.
if "$venv/bin/python" -m pip show --quiet opencv-python >/dev/null 2>&1; then
    headless="$(sed -n 's/.*"\(opencv-python-headless==[^"]*\)".*/\1/p' pyproject.toml)"
    "$venv/bin/python" -m pip uninstall --quiet --yes opencv-python
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall "$headless"
fi
"$venv/bin/python" -c 'import cv2, torch, av' || {
    echo "the environment was made, but its libraries cannot be loaded; see the message above" >&2
    exit 3
}
