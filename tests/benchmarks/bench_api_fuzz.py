"""Made-up requests against the whole HTTP interface: how many of 10,000 end in a server error, or in an answer nobody documented.

    driftbox bench api_fuzz
    driftbox bench api_fuzz --cases 1000 --start 7

The requests are made from the box's own OpenAPI document by schemathesis, right and wrong ones, asked as an admin.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.api_fuzz import fuzz, fuzzed_box


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=int, default=10_000)
    options.add_argument("--start", type=int, default=0, help="of the chance; the same start makes the same requests")
    given = options.parse_args()
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, fuzzed_box(Path(folder)) as (app, headers):
        found = fuzz(app, headers, cases=given.cases, start=given.start)
    for told in (found.server_errors + found.undocumented)[:20]:
        print(told)
    for told, count in (("server errors", len(found.server_errors)), ("answers not as documented", len(found.undocumented))):
        print(f"{told}: {count} of {found.cases} (to reach: 0 of 10,000) {'reached' if count == 0 else 'MISSED'}")
    print(
        f"{found.cases} requests in {time.perf_counter() - started_s:.0f} s; answers by status: {dict(sorted(found.statuses.items()))}"
    )
    return 1 if found.server_errors or found.undocumented else 0


if __name__ == "__main__":
    sys.exit(main())
