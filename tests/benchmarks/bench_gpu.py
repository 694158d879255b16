"""What a GPU makes of the shares: everything in the numbers to reach that says GPU, in under 8 minutes, with torch, torchvision, numpy.

    python tests/benchmarks/bench_gpu.py [--out FOLDER] [--sections shares,latency] [--rehearse]

Run from the repository's root on the machine with the GPU; nothing has to be installed there but those three packages. Every section
runs in a process of its own with a time limit, so a section that fails, hangs or breaks its CUDA context costs only itself. Writes
`gpu-CARD-DATE.json` and `.md` (a table, dated, with the card's name) to --out, to $OUT where that is set, else to the current folder.
--rehearse runs the same code on a CPU at toy size, to find mistakes before a GPU is there; its figures mean nothing.
Exits 3 without a CUDA GPU, 1 when a figure missed its target or a section did not end. Wants a GPU that nobody else uses.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

TOTAL_S = 465.0


def main(arguments: Sequence[str] | None = None) -> int:
    if missing := _packages_missing():
        print(missing, file=sys.stderr)
        return 3
    from gpu_sections import SECTIONS, run_section

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--sections", default=",".join(SECTIONS), help="comma-separated; all: " + ",".join(SECTIONS))
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--in-process", metavar="SECTION", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = options.sections.split(",")
    unknown = sorted(set(names) - set(SECTIONS))
    if unknown:
        parser.error(f"no section is called {', '.join(unknown)}; known: {', '.join(SECTIONS)}")
    if options.in_process:
        # A section that crashes or hangs says where.
        faulthandler.enable()
        faulthandler.dump_traceback_later(SECTIONS[options.in_process][1] - 3, file=sys.stderr)
        run_section(options.in_process, rehearse=options.rehearse, path=options.rows)
        return 0
    if not options.rehearse and (lacking := _no_gpu()):
        print(lacking, file=sys.stderr)
        return 3
    return _run_all(names, options.out, rehearse=options.rehearse)


def _packages_missing() -> str:
    try:
        import models.torch_compat  # noqa: F401  (imports torchvision, also beside a CPU torch)
    except ImportError as error:
        return f"bench gpu needs torch, torchvision and numpy: {error}"
    return ""


def _no_gpu() -> str:
    import torch

    if torch.cuda.is_available():
        return ""
    return "bench gpu needs a CUDA GPU, and torch sees none on this machine; --rehearse tries the script itself on a CPU"


def _run_all(names: Sequence[str], out: Path, *, rehearse: bool) -> int:
    started_s = time.monotonic()
    rows: list[dict[str, object]] = []
    problems: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        for name in names:
            left_s = TOTAL_S - (time.monotonic() - started_s)
            print(name if rehearse else f"{name} ({left_s:.0f} s left)", flush=True)
            path = Path(folder, f"{name}.json")
            problem = _rehearse(name, path) if rehearse else _run_section(name, path, left_s)
            if problem:
                problems[name] = problem
                print(f"  {name}: {problem}", flush=True)
            if path.exists():
                rows += json.loads(path.read_text(encoding="utf-8"))
    document = {
        "card": "rehearsal on a CPU" if rehearse else _card(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "seconds": round(time.monotonic() - started_s, 1),
        "rows": rows,
        "problems": problems,
    }
    _write(document, out)
    return 1 if problems or any(row["met"] is False for row in rows) else 0


def _rehearse(name: str, path: Path) -> str:
    """In this process and without a limit: importing torch thirteen times is what takes long on a small machine."""
    from gpu_sections import run_section

    try:
        run_section(name, rehearse=True, path=path)
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"
    return ""


def _run_section(name: str, path: Path, left_s: float) -> str:
    """In a process of its own. Returns what went wrong, '' when nothing did."""
    from gpu_sections import SECTIONS

    limit_s = min(SECTIONS[name][1], left_s)
    if limit_s < 5:
        return "no time left"
    command = [sys.executable, __file__, "--in-process", name, "--rows", str(path)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: nobody else is in the group
        process.wait()
        return f"stopped after {limit_s:.0f} s; the rows before that are in the table"
    return "" if code == 0 else f"ended with code {code}"


def _card() -> str:
    code = "import torch; print(torch.cuda.get_device_name(0), '/ torch', torch.__version__)"
    return (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
        or "unknown card"
    )


def _write(document: dict[str, object], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    card = re.sub(r"[^A-Za-z0-9]+", "-", str(document["card"]).partition(" / ")[0]).strip("-").lower()
    stem = out / f"gpu-{card}-{document['date']}"
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    stem.with_suffix(".md").write_text(markdown(document), encoding="utf-8")
    print(f"\n{markdown(document)}\nwritten: {stem}.json and .md")


def markdown(document: dict[str, object]) -> str:
    """The table that goes into docs/gpu.md."""
    lines = [
        f"Measured {document['date']} on {document['card']}, in {document['seconds']} s.",
        "",
        "| section | what | anchor | to reach | measured | met |",
        "|---|---|---|---|---|---|",
    ]
    rows = document["rows"]
    assert isinstance(rows, list)
    for row in rows:
        cells = [str(row[key]).replace("|", "/") for key in ("section", "what", "anchor", "target", "value")]
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]
        lines.append(f"| {' | '.join(cells)} | {met} |")
    problems = document["problems"]
    assert isinstance(problems, dict)
    lines += [f"\n{name}: {problem}." for name, problem in problems.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
