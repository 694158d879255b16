#!/bin/sh
# Makes the environment: sh scripts/install_env.sh VENV_FOLDER. Called by `make` when pyproject.toml has changed, and by
# scripts/service.sh, which names what is installed (DRIFTBOX_SPEC: the source tree, without what development needs).
set -eu
venv="$1"
python="${PYTHON:-python3}"
tree="$(cd "$(dirname "$0")/.." && pwd)"
fail() { printf '%s\n' "$1" >&2; exit 3; }

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

# pip unpacks gigabytes on their way; /tmp is often a part of the memory, and too small for that.
scratch="$venv/scratch"
rm -rf "$scratch"
mkdir "$scratch"
trap 'rm -rf "$scratch"' EXIT
export TMPDIR="$scratch"

packages() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet "$@" || fail "the libraries could not be installed; see above. \
Was the internet in reach, and is there room on the disk? Without internet: docs/install.md"
}

echo "installing Driftbox and its libraries (minutes, once: how much is downloaded is in docs/install.md)"
if [ -n "${DRIFTBOX_SPEC:-}" ]; then
    # A copy is built: nothing of root's stays in the tree, and nothing that a build before left there gets into this one.
    mkdir "$scratch/source"
    (cd "$DRIFTBOX_SPEC" && tar -cf - --exclude=__pycache__ pyproject.toml README.md LICENSE cluster configs edge models scheduler streams) \
        | tar -xof - -C "$scratch/source"
    packages --upgrade "$scratch/source"
else
    packages -e '.[dev,cluster]'
fi

# ultralytics asks for opencv-python, which needs libGL and others that bare systems lack; both packages own the same files,
# so the plain one is removed and the headless one put back whole.
if "$venv/bin/python" -m pip show --quiet opencv-python >/dev/null 2>&1; then
    headless="$(sed -n 's/.*"\(opencv-python-headless==[^"]*\)".*/\1/p' "$tree/pyproject.toml")"
    "$venv/bin/python" -m pip uninstall --quiet --yes opencv-python
    packages --no-deps --force-reinstall "$headless"
fi
"$venv/bin/python" -c 'import cv2, torch, av' || fail "the environment was made, but its libraries cannot be loaded; see the message above"
