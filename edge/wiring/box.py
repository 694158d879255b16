"""A box, built from its configuration and taken apart again."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from configs.schema import BoxConfig
from edge.cameras.book import CameraBook
from edge.cameras.secrets import SecretFiles
from edge.cameras.times import local_now, watches_at
from edge.clock import Clock, SystemClock
from edge.garbage import kept_from_collections
from edge.gpu.base import SWITCH_S, DeviceFacts
from edge.gpu.choose import clock_for
from edge.jobs import here
from edge.journal import Journal
from edge.media.folder import MediaFolder
from edge.media.parts import Media, media_of
from edge.runtime import BoxRuntime, Parts, Watched, price_of
from edge.samples import FileSamples
from edge.sampling import Sampler
from edge.settings_book import SettingsBook
from edge.shelf import Shelf
from edge.store.cameras import CameraRows
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.swapping import no_form_s
from edge.wiring.cameras import CameraMaker, profiles_of, reprofiling_of
from edge.wiring.compute import (
    backend_of,
    frame_threads_of,
    hand_over,
    measured_speed,
    pool_of,
    pool_workers,
    processes_of,
    serve_in_pool,
    serve_in_process,
    watched_devices,
)
from edge.wiring.models import cost_s, goldens_in_form, label_once, load_goldens, serving_of, sized
from edge.wiring.rendered import rendered_server
from edge.wiring.settings import (
    device_of_models,
    engine_config,
    labelling_of,
    reprofile_of,
    retention_of,
    scoring_of,
    settled_serving,
    shadow_of,
    trials_at_once,
    with_serving,
)
from edge.wiring.wide import wide_of
from scheduler.commands import Note
from scheduler.engine import BoxEngine
from streams.samples import SampleStore

log = logging.getLogger("driftbox")

#: Earlier windows whose labels a retraining may replay.
REPLAY_WINDOWS = 5


@dataclass(kw_only=True)
class Box:
    """A built box, not yet running. config: with its cameras as they are in force; first_window: the one to open first; book, maker:
    where its cameras are kept and how more are made; settings: what else was changed through the product; media: what keeps objects,
    snapshots and clips; devices: its GPUs as of the newest look."""

    config: BoxConfig
    runtime: BoxRuntime
    watched: list[Watched]
    first_window: int
    folder: DataFolder
    store: Store
    book: CameraBook
    settings: SettingsBook
    maker: CameraMaker
    media: Media
    devices: Callable[[], tuple[DeviceFacts, ...]] = tuple


@contextlib.contextmanager
def built(config: BoxConfig, *, say: Callable[[str], None] = log.info) -> Iterator[Box]:
    """Builds the box and takes it apart again. Raises the errors of its parts (configuration, weights, storage)."""
    # One thread per job: two torch threads beside another busy one fall from 28 ms to seconds (OpenMP spinning).
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    clock = clock_for(config.gpus, SystemClock())
    with ExitStack() as stack:
        folder = stack.enter_context(DataFolder(config.box.data_dir))
        store = stack.enter_context(Store(folder.db_path))
        samples = SampleStore(
            folder.samples_dir, max_windows=config.storage.retention_windows, max_bytes=int(config.storage.max_gib * 2**30)
        )
        on_news: list[Callable[[Note], None]] = []
        gpus = stack.enter_context(watched_devices(store, clock, on_news))
        # Before any model is loaded: which GPU this process sees is settled here.
        wide = wide_of(config.gpus, clock, gpus.newest)
        if wide is not None:
            stack.callback(wide.close)
        backend = backend_of(config, wide.paces if wide is not None else clock, gpus.newest)
        stack.callback(backend.close)
        own_clock, clock = clock, wide.clock if wide is not None else clock
        processes = processes_of(backend)
        if processes is not None:
            own_clock = clock = processes.remote_clock  # a frame costs what its process computed
        shelf = Shelf(folder, store, clock, retention_of(config), device=device_of_models(config))
        for note in folder.recover(store, at_utc=clock.utc_s()):
            store.add_note(clock.utc_s(), "recovered", note)
            say(f"recovered: {note}")
        base, book = config, book_of(config, folder, store, clock)
        settings = SettingsBook(config, store, utc_s=clock.utc_s)
        config, why = settled_serving(settings.over(config_in_force(book, say)))
        if why:
            say(why)
        book = book_of(with_serving(base, config.scheduler.serving), folder, store, clock)
        pool = pool_of(config, backend, clock)
        if pool is not None:
            stack.callback(pool.pool.close)
            backend = pool.backend
        frame_threads = frame_threads_of(config, clock)
        if frame_threads is not None:
            stack.callback(frame_threads.close)
        maker = CameraMaker(config, clock, pool.pool if pool is not None else None, samples, load_goldens(config))
        goldens = maker.goldens
        maker.addresses |= stack.enter_context(rendered_server(config))
        stack.callback(maker.close)

        def require_room() -> None:
            folder.require_free(config.storage.min_free_mib)

        journal = Journal(folder.events_dir, max_bytes=config.storage.journal_mib * 2**20)
        stack.callback(journal.close)
        labelling = labelling_of(config)
        label_s = max(cost_s(partial(label_once, name, golden), own_clock) for name, golden in goldens.items())
        engine = BoxEngine(
            replace(
                engine_config(config, label_s * labelling.views), speed=measured_speed(config, folder, backend, say),
                change=price_of(backend.change_cost()),
            )
        )  # fmt: skip
        serving = serving_of(config, folder, store, samples, clock, maker.task_of, threads=pool_workers(config))
        stack.callback(serving.close)
        serve, serve_later = serving.serve, serving.serve_later
        steps = wide.steps if wide else here
        in_processes = wide is not None or processes is not None
        labels_by = maker.golden_of if in_processes else goldens_in_form(config, folder, store, clock, maker.golden_of, stack)
        if pool is not None:
            serve, serve_later = partial(serve_in_pool, pool.pool, serve), partial(serve_in_pool, pool.pool, serve_later)
        if processes is not None:
            serve = serve_later = partial(serve_in_process, processes)
            steps = processes.steps
        profiles = profiles_of(maker.watching, store, clock)
        serve, serve_later = partial(sized, profiles, serve), partial(sized, profiles, serve_later)
        runtime = BoxRuntime(
            Parts(
                engine=engine,
                backend=backend,
                journal=journal,
                store=store,
                shelf=shelf,
                samples=FileSamples(samples),
                sampler=Sampler(samples, fps=config.window.sample_fps, clock=clock, require_room=require_room),
                golden_of=labels_by,
                clock=clock,
                scoring=scoring_of(config),
                labelling=labelling,
                replay_windows=REPLAY_WINDOWS,
                require_room=require_room,
                shadow=shadow_of(config),
                profiles=profiles,
                reprofile=reprofile_of(config),
                on_cpu=config.gpus.device == "cpu",
                reprofiling=reprofiling_of(config, lambda: book.read().config),
                serve=serve,
                serve_later=serve_later,
                form_s=serving.form_s if processes is None else no_form_s,
                steps=steps,
                frame_threads=frame_threads,
                trials_at_once=trials_at_once(config, backend.name),
                profile_halving=config.window.profile_halving,
                widths=wide.widths if wide is not None else nullcontext,
            )  # fmt: skip
        )
        if processes is not None:
            processes.hand_over = partial(hand_over, runtime)
        on_news.append(lambda note: runtime.notes.append((clock.utc_s(), note)))
        maker.runtime, maker.served = runtime, serve_later
        maker.media = media_of(
            config.storage.media, MediaFolder(folder.media_dir), store, runtime.parts.object_listeners,
            cameras=lambda: book.read().config.cameras,
        )  # fmt: skip
        settings.on_media.append(maker.media.use)
        if processes is not None:
            maker.refusal = (
                "under gpus.backend: mps cameras join and change their stream or model with the next start of the box"
            )
        watched = [maker.make(entry) for entry in config.active_cameras if watches_at(entry, local_now(entry))]
        stack.enter_context(kept_from_collections())
        yield Box(
            config=config, runtime=runtime, watched=watched, first_window=next_window(store, samples), folder=folder, store=store,
            book=book, settings=settings, maker=maker, media=maker.media, devices=gpus.facts,
        )  # fmt: skip


def book_of(base: BoxConfig, folder: DataFolder, store: Store, clock: Clock) -> CameraBook:
    """What was changed in the product about the cameras of this configuration."""
    return CameraBook(base, CameraRows(store), SecretFiles(folder.root), utc_s=clock.utc_s)


def config_in_force(book: CameraBook, say: Callable[[str], None]) -> BoxConfig:
    """The configuration with its cameras as the file and the product have them. Raises ConfigError when they do not fit together."""
    for name in book.tidy():
        say(f"recovered: removed the secret {name}, which no camera uses")
    found = book.read()
    for text in found.findings:
        say(text)
    return found.config


def next_window(store: Store, samples: SampleStore) -> int:
    """After a restart a new window begins; the samples of the interrupted one are what it learns from."""
    return max(store.next_window(), samples.newest_window() + 1)
