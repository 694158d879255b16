"""What a rank does where its device is a GPU, over a fake of torch.distributed: NCCL, its own GPU and no other, groups."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from configs.errors import JobError
from models import wide
from models.wide import _Answer, _Ask, _Groups, _Member, _serve


class Pipe:
    """A pipe whose other end has closed after `asks`."""

    def __init__(self, *asks: Any) -> None:
        self.asks, self.sent = list(asks), list[Any]()

    def recv(self) -> Any:
        if not self.asks:
            raise EOFError
        return self.asks.pop(0)

    def send(self, what: Any) -> None:
        self.sent.append(what)


class Distributed:
    """Notes what is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Exception | None = None) -> None:
        self.joined: list[tuple[str, dict[str, Any], str | None]] = []
        self.groups: list[tuple[list[int], dict[str, Any]]] = []
        self.reduced: list[Any] = []
        self._fails = fails
        monkeypatch.setattr(torch.distributed, "init_process_group", self.init)
        monkeypatch.setattr(torch.distributed, "new_group", self.new_group)
        monkeypatch.setattr(torch.distributed, "all_reduce", self.all_reduce)

    def init(self, backend: str, **how: Any) -> None:
        if self._fails:
            raise self._fails
        self.joined.append((backend, how, os.environ.get("CUDA_VISIBLE_DEVICES")))

    def new_group(self, ranks: list[int], **how: Any) -> object:
        self.groups.append((ranks, how))
        return ("group", *ranks)

    def all_reduce(self, value: torch.Tensor, *, group: Any) -> None:
        self.reduced.append(group)
        value.mul_(2)


@pytest.fixture(autouse=True)
def no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "_end_with", lambda parent: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-of-the-box")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize(("device", "backend", "sees"), [("GPU-1234", "nccl", "GPU-1234"), ("cpu", "gloo", "GPU-of-the-box")])
def test_a_rank_joins_with_its_own_device(device: str, backend: str, sees: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, pipe, threads = Distributed(monkeypatch), Pipe(), torch.get_num_threads()
    try:
        _serve(1, 3, device, "/meet", pipe)  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(threads)
    assert fake.joined == [(backend, {"init_method": "file:///meet", "rank": 1, "world_size": 3}, sees)]
    assert pipe.sent == [_Answer()], "it says that it is there"


def test_a_gpu_that_cannot_join_is_said() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        Distributed(monkeypatch, RuntimeError("NCCL error: unhandled cuda error"))
        pipe = Pipe()
        _serve(0, 2, "GPU-1234", "/meet", pipe)  # type: ignore[arg-type]
    [answer] = pipe.sent
    message, _, code = answer.error
    assert "NCCL error" in message
    assert code == "process_lost"


def test_what_a_device_says_of_itself_is_passed_on() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        Distributed(monkeypatch, JobError("no room", subject="x", remedy="a smaller model", code="out_of_memory"))
        pipe = Pipe()
        _serve(0, 2, "GPU-1234", "/meet", pipe)  # type: ignore[arg-type]
    assert pipe.sent[0].error == ("no room", "a smaller model", "out_of_memory")


def test_every_rank_makes_every_group_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those it is not in: torch finds a group's members by how many groups a process has made."""
    fake = Distributed(monkeypatch)
    groups = _Groups(2, 4)
    assert groups.member((2,)) is None, "one alone adds nothing up"
    assert groups.member((0, 1, 2, 3)) == _Member(rank=2, size=4)
    groups.make((0, 1))
    groups.make((1, 2))
    assert groups.member((1, 2)) == groups.member((1, 2)) == _Member(rank=1, size=2, group=("group", 1, 2))
    assert fake.groups == [([0, 1], {}), ([1, 2], {})]


def test_a_rank_that_is_told_of_a_group_makes_it_and_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Distributed(monkeypatch)
    pipe = Pipe(_Ask(group=(0, 2)), _Ask(training=7, drop=True))
    _serve(1, 3, "GPU-1234", "/meet", pipe)  # type: ignore[arg-type]
    assert pipe.sent == [_Answer()], "that it has met the others"
    assert fake.groups == [([0, 2], {})]


def test_gradients_are_added_up_among_the_members_only(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Distributed(monkeypatch)
    values = [torch.ones(2, 2), torch.full((3,), 2.0), torch.ones(1, dtype=torch.float64)]
    _Member(rank=0, size=2, group="ours").add_up(values)
    assert fake.reduced == ["ours", "ours"], "a message for each kind of number"
    assert [value.tolist() for value in values] == [[[2.0, 2.0], [2.0, 2.0]], [4.0, 4.0, 4.0], [2.0]]


def test_a_training_that_was_never_begun_here_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    Distributed(monkeypatch)
    pipe = Pipe(_Ask(training=7, drop=True))
    _serve(0, 2, "GPU-1234", "/meet", pipe)  # type: ignore[arg-type]
    assert pipe.sent == [_Answer()]
