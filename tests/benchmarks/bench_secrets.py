"""Canaries in every credential of a running box: in how many logs, pages, metrics, messages, bundles, files and processes they are seen.

    driftbox bench secrets

A box over real RTSP and TLS, with a broker's password where mosquitto is installed: a camera with the right password, one with a wrong
one, one typed in, an account, a session, a token, a private key. Everything the box shows is searched for each of them, plain, in
base64, percent-encoded and as JSON. Files made for secrets (readable by the box's user only) are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.canaries import shown_by_a_box


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shown = shown_by_a_box(Path(folder))
    leaks = set(shown.leaks())
    print(f"{'where':<24}{'looked at':>10}{'kB':>10}{'credentials seen':>18}")
    for kind, names in sorted(shown.by_kind().items()):
        size_kb = sum(len(shown.seen[name]) for name in names) / 1000
        print(f"{kind:<24}{len(names):>10}{size_kb:>10,.0f}{len(leaks & set(names)):>18}")
    for name in sorted(leaks):
        print(f"seen in: {name}")
    print(
        f"\n{'MISSED' if leaks else 'reached':<8} credentials in any log, page, metric, bundle, process list: {len(leaks)} of "
        f"{len(shown.seen)} places (to reach: 0; anchor: Frigate had five such issues)"
    )
    print(f"         {len(shown.secrets)} secrets; load of the machine over the last minute: {os.getloadavg()[0]:.1f}")
    return 1 if leaks else 0


if __name__ == "__main__":
    sys.exit(main())
