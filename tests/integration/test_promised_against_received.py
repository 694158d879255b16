"""What jobs were promised and received, per window: on a box in this process, and on the whole box with two real videos over RTSP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge.store.store import Store
from scheduler import events as ev
from scheduler.commands import ReportWindow
from tests.benchmarks.bench_shares_live import Setting, run, show
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import CONFIG, LiveBox

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def test_every_job_of_a_window_is_in_the_log_the_database_and_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    caplog.set_level("INFO", logger="driftbox")
    reports: list[ReportWindow] = []
    promised: dict[str, float] = {}

    def heard(thing: object) -> None:
        if isinstance(thing, ReportWindow):
            reports.append(thing)

    with LiveBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=replace(CONFIG, window_s=4.0)) as box:
        box.runtime.parts.listeners.append(heard)
        real = box.backend.set_shares

        def remember(shares: dict[str, float]) -> None:
            for job, pct in shares.items():
                promised[job] = max(pct, promised.get(job, 0.0))
            real(shares)

        box.backend.set_shares = remember  # type: ignore[method-assign,assignment]
        trained = box.wait_for(ev.RetrainDone)

        def its_window() -> list[int]:
            """The window in which it was trained, once that is closed and kept."""
            closed = [o.window for o in box.status.status().outcomes]
            return [window for window in closed if any(s.job == trained.job for s in box.store.shares(window))]

        box.wait(lambda: bool(its_window()), "its window has closed")
        window = its_window()[0]
        view = next(o for o in box.status.status().outcomes if o.window == window)
        shares = box.store.shares(window)
        assert box.replayed().exact
    jobs = {s.job: s for s in shares}
    assert {"a/infer", "b/infer"} <= set(jobs)
    assert trained.job in promised
    assert {s.job for s in view.shares} == set(jobs)
    kinds = {s.kind for s in view.shares}
    assert {"inference", "preparation"} <= kinds
    for job, share in jobs.items():
        assert 0 <= share.received_pct <= 100.0, job
        assert 0 <= share.promised_pct <= promised.get(job, 100.0) + 1e-6
        assert 0 <= share.backlogged_frac <= 1
        assert f"window {window}, {job}: promised" in caplog.text
    with Store(tmp_path / "data" / "driftbox.db") as store:
        assert store.shares(window) == shares, "and it is there after a restart"


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "weights").is_dir(), reason="needs the videos and weights of ../shared/data")
def test_a_real_box_prints_promised_against_received_for_every_job_and_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No deviation is judged: on a machine with other work none can be promised. `driftbox bench shares_live` prints them."""
    videos = [DATA / "videos" / name for name in ("brt_avenue.mp4", "ua_detrac_mvi40201.mp4")]
    setting = Setting(windows=1, window_s=60.0, first_s=20.0, always=True, label_frames=8, epochs=2, patience_s=1200.0)
    seen = run(videos, DATA / "weights", setting, tmp_path)
    assert len(seen.windows) >= 2
    kinds = {report.job.split("/")[1] for reports in seen.windows.values() for report in reports}
    assert {"infer", "label"} <= kinds
    for reports in seen.windows.values():
        assert {"camera0/infer", "camera1/infer"} <= {report.job for report in reports}
        # Each is a mean over the job's own time; what all were promised at once was never more than there is.
        total_s = max(report.span_s for report in reports)
        assert sum(r.promised_pct * r.span_s for r in reports) <= (setting.capacity_pct + 0.5) * total_s
        assert all(report.received_pct > 0 for report in reports if report.backlogged_frac > 0.5)
    show(seen, setting)
    printed = capsys.readouterr().out
    for window, reports in seen.windows.items():
        for report in reports:
            assert any(line.split()[:2] == [str(window), report.job] for line in printed.splitlines())
    log = (tmp_path / "output.txt").read_text()
    assert "window 1, camera0/infer: promised" in log
