#!/bin/sh
# Installs Driftbox as a service, or takes it away again: sh scripts/service.sh install | uninstall. Called by `make install` and
# `make uninstall`, from a clone of the source tree.
#
#   PREFIX=/opt/driftbox  where the program goes     PYTHON=python3.12  which Python
#   PURGE=1               uninstall: configuration and data go as well, without asking
#   DESTDIR=/some/root    writes below that root and only prints what it would do to this system (users, services)
#   SKIP_ENV=1            leaves the Python environment as it is (packages, tests)
#
# An environment is made beside the one that runs, under a name of its own; PREFIX/venv is a link to the one in use. So a download that
# fails costs nothing, and a box stands still only while its data are brought to the new version.
set -eu

prefix="${PREFIX:-/opt/driftbox}"
root="${DESTDIR:-}"
user=driftbox
config=/etc/driftbox/box.yaml
data=/var/lib/driftbox
cache=/var/cache/driftbox
unit=/etc/systemd/system/driftbox.service
journal=/etc/systemd/journald@driftbox.conf
link=/usr/local/bin/driftbox
here="$(cd "$(dirname "$0")/.." && pwd)"

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$1" >&2; exit "${2:-3}"; }

# What changes this system beyond files: printed only, when a root is given.
system() {
    if [ -n "$root" ]; then say "would run: $*"; else "$@"; fi
}

need_root() {
    [ -n "$root" ] || [ "$(id -u)" -eq 0 ] || fail "this needs root. Type:  sudo make $1"
    [ -n "$root" ] || command -v systemctl >/dev/null 2>&1 || fail "there is no systemd here; run 'driftbox run CONFIG' from your own service manager, or use configs/container"
}

running() { [ -z "$root" ] && systemctl is-active --quiet driftbox; }

make_user() {
    if id "$user" >/dev/null 2>&1; then return; fi
    groups=""
    for group in video render; do
        if getent group "$group" >/dev/null 2>&1; then groups="${groups:+$groups,}$group"; fi
    done
    system useradd --system --user-group ${groups:+--groups "$groups"} --home-dir "$data" --no-create-home --shell /usr/sbin/nologin "$user"
}

owned() {  # MODE OWNER PATH: of a folder
    mkdir -p "$root$3"
    chmod "$1" "$root$3"
    if [ -z "$root" ]; then chown "$2" "$3"; fi
}

as_box() {  # COMMAND: as the box's user, from a folder that it may read, with its own caches
    system env -C / HOME="$data" XDG_CACHE_HOME="$cache" MPLCONFIGDIR="$cache" YOLO_CONFIG_DIR="$cache" runuser -u "$user" -- "$@"
}

# Only what has changed is downloaded and takes room then: files are the same ones under a second name. That is safe, because pip removes
# a file before it writes one of that name; only scripts, which name their Python, are made anew here.
start_from_the_one_in_use() {
    if [ ! -d "$root$prefix/venv/bin" ]; then return; fi
    cp -al "$root$prefix/venv/." "$root$prefix/$next" 2>/dev/null || { rm -rf "$root$prefix/$next"; return; }
    for script in "$root$prefix/$next/bin"/*; do
        if [ -f "$script" ] && [ ! -L "$script" ] && [ "$(head -c 2 "$script" | tr -d '\0')" = '#!' ]; then
            sed -i "1s|^#!$root$prefix/[^/]*/bin/|#!$root$prefix/$next/bin/|" "$script"
        fi
    done
}

make_environment() {
    owned 0755 root:root "$prefix"
    if [ -n "${SKIP_ENV:-}" ]; then return; fi
    next="env-$(date -u +%Y%m%d-%H%M%S)"
    start_from_the_one_in_use
    DRIFTBOX_SPEC="$here" sh "$here/scripts/install_env.sh" "$root$prefix/$next"
}

use_environment() {  # NAME
    if [ -d "$root$prefix/venv" ] && [ ! -L "$root$prefix/venv" ]; then mv "$root$prefix/venv" "$root$prefix/env-before"; fi
    ln -sfn "$1" "$root$prefix/venv.new"
    mv -T "$root$prefix/venv.new" "$root$prefix/venv"
}

environment_in_use() {
    if [ -L "$root$prefix/venv" ]; then readlink "$root$prefix/venv"; elif [ -d "$root$prefix/venv" ]; then echo env-before; fi
}

remove_other_environments() {
    used="$(environment_in_use)"
    for folder in "$root$prefix"/env-*; do
        if [ -d "$folder" ] && [ "${folder##*/}" != "$used" ]; then rm -rf "$folder"; fi
    done
}

back_up() {
    program="$prefix/${next:-venv}/bin/driftbox"
    if [ -f "$root$data/driftbox.db" ] && [ -x "$root$program" ]; then
        say "backing the box up before anything changes"
        as_box "$program" backup make --before-upgrade --data-dir "$data" \
            || fail "the box could not be backed up, so nothing was changed; see the message above"
    fi
}

make_folders() {
    owned 0750 "root:$user" /etc/driftbox
    owned 0750 "$user:$user" "$data"
    owned 0750 "$user:$user" "$cache"
    if [ -e "$root$config" ]; then
        say "kept $config as it is"
    else
        install -m 0640 "$here/configs/service/box.yaml" "$root$config"
        if [ -z "$root" ]; then chown "root:$user" "$config"; fi
        say "wrote $config"
    fi
}

make_service() {
    mkdir -p "$root$(dirname "$unit")" "$root$(dirname "$link")"
    sed "s|@PREFIX@|$prefix|g" "$here/configs/service/driftbox.service" > "$root$unit.new"
    chmod 0644 "$root$unit.new"
    mv "$root$unit.new" "$root$unit"
    install -m 0644 "$here/configs/service/journald@driftbox.conf" "$root$journal"
    ln -sfn "$prefix/venv/bin/driftbox" "$root$link"
}

bring_data() {
    if [ ! -f "$root$data/driftbox.db" ]; then return; fi
    as_box "$prefix/venv/bin/driftbox" upgrade "$config" && return
    if [ -n "$before" ] && [ -n "${next:-}" ]; then
        use_environment "$before"
        if [ "$was_running" = yes ]; then system systemctl start driftbox; fi
        fail "this version does not go with the box's data or configuration (see above), so the one before stays; back-ups: $data/backups"
    fi
    fail "this version does not go with the box's data or configuration (see above); back-ups: $data/backups"
}

do_install() {
    need_root install
    make_user
    trap remove_other_environments EXIT
    make_environment
    back_up
    make_folders
    was_running=no
    if running; then was_running=yes; system systemctl stop driftbox; fi
    before="$(environment_in_use)"
    if [ -n "${next:-}" ]; then use_environment "$next"; fi
    bring_data
    make_service
    system systemctl daemon-reload
    system systemctl enable --now driftbox || fail "the service does not start; it says why in:  journalctl --namespace driftbox -u driftbox -n 50"
    if [ "$was_running" = yes ]; then say "upgraded and started again"; else say "installed and started"; fi
    say "the page:        https://$(hostname 2>/dev/null || echo this-machine):8080 (it shows a certificate of its own at first)"
    say "the claim code:  sudo journalctl --namespace driftbox -u driftbox -g 'claim code'"
    say "how it is:       systemctl status driftbox;  driftbox doctor $config"
}

ask_purge() {
    if [ -n "${PURGE:-}" ]; then [ "$PURGE" = 1 ]; return; fi
    if [ ! -t 0 ]; then return 1; fi
    printf 'Remove configuration, models, samples, clips, back-ups (%s, %s) and the log for good? Type yes: ' "$data" "$(dirname "$config")"
    read -r answer
    [ "$answer" = yes ]
}

do_uninstall() {
    need_root uninstall
    if [ -e "$root$unit" ]; then
        system systemctl disable --now driftbox
        system systemctl stop systemd-journald@driftbox.socket systemd-journald-varlink@driftbox.socket systemd-journald@driftbox.service
    fi
    rm -f "$root$unit" "$root$journal" "$root$link"
    system systemctl daemon-reload
    rm -rf "$root${prefix:?}/venv" "$root$prefix"/env-*
    rmdir "$root$prefix" 2>/dev/null || true
    if ask_purge; then
        rm -rf "$root$data" "$root$cache" "$root$(dirname "$config")" "$root"/var/log/journal/*.driftbox
        if id "$user" >/dev/null 2>&1; then system userdel "$user"; fi
        say "removed, data and configuration included"
    else
        rm -rf "$root$cache"
        say "removed; data stay in $data, configuration in $(dirname "$config"), the log in its journal (PURGE=1 removes them)"
    fi
}

case "${1:-}" in
    install) do_install ;;
    uninstall) do_uninstall ;;
    *) fail "say install or uninstall" 2 ;;
esac
